//! `gen`: generates records for measurements, in the kv form.
//!
//! Keys have 24 printable bytes and are distinct. With random order, the first 16 digits of a key are the record's
//! number, scattered by one bijection. The last eight digits come from another bijection of this number. All digits are
//! hexadecimal. With ascending order, a key is the record's number. Values are printable, with six random bits in each
//! byte. The same seed gives the same records.

use std::io::{self, Write};

use pandodb::base::random::scatter as mix;

use crate::{
    args::{GenArgs, Order},
    failure::Outcome,
    output,
};

/// The length of a key.
const KEY_BYTES: usize = 24;

/// Writes the records to stdout.
pub fn run(args: &GenArgs) -> Outcome {
    let mut out = output::stdout();
    write_records(args, &mut out).map_err(|e| output::lost(&e))?;
    output::finish(out)
}

fn write_records(args: &GenArgs, out: &mut impl Write) -> io::Result<()> {
    let mut line = vec![0; KEY_BYTES + 1 + args.value_bytes + 1];
    line[KEY_BYTES] = b'\t';
    line[KEY_BYTES + 1 + args.value_bytes] = b'\n';
    let mut stream = mix(args.seed ^ 0x7061_6e64_6f00_0001);
    for number in 0..args.records {
        match args.order {
            Order::Random => {
                let spread = mix(number ^ mix(args.seed));
                push_digits(&mut line[..16], spread, 16);
                push_digits(&mut line[16..KEY_BYTES], mix(spread), 16);
            }
            Order::Sequential => {
                line[..4].copy_from_slice(b"0000");
                push_digits(&mut line[4..KEY_BYTES], number, 10);
            }
        }
        fill_value(&mut line[KEY_BYTES + 1..][..args.value_bytes], &mut stream);
        out.write_all(&line)?;
    }
    Ok(())
}

/// Writes the lowest digits of `n` into `out`, with leading zeros.
fn push_digits(out: &mut [u8], mut n: u64, base: u64) {
    for place in out.iter_mut().rev() {
        *place = b"0123456789abcdef"[(n % base) as usize];
        n /= base;
    }
}

fn fill_value(value: &mut [u8], stream: &mut u64) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for chunk in value.chunks_mut(10) {
        *stream = stream.wrapping_add(1);
        let mut bits = mix(*stream);
        for byte in chunk {
            *byte = LETTERS[(bits & 63) as usize];
            bits >>= 6;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn lines(args: &GenArgs) -> Vec<String> {
        let mut out = Vec::new();
        write_records(args, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn random_keys_are_distinct_and_unordered() {
        let args = GenArgs { records: 10_000, order: Order::Random, seed: 7, value_bytes: 100 };
        let made = lines(&args);
        assert_eq!(made, lines(&args));
        let keys: HashSet<&str> = made.iter().map(|line| &line[..KEY_BYTES]).collect();
        assert_eq!(keys.len(), 10_000);
        let ascents = made.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((4_000..6_000).contains(&ascents), "{ascents}");
        assert!(made.iter().all(|line| line.len() == KEY_BYTES + 1 + 100 && line.as_bytes()[KEY_BYTES] == b'\t'));
    }

    #[test]
    fn sequential_keys_ascend() {
        let made = lines(&GenArgs { records: 1_000, order: Order::Sequential, seed: 0, value_bytes: 3 });
        assert!(made.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(made[999].starts_with("000000000000000000000999\t"));
    }
}
