//! The arguments of `pando lab filters`.

use clap::Args;

/// `pando lab filters`
#[derive(Debug, Args)]
pub struct FiltersArgs {
    /// The numbers of keys, such as 200k,10M.
    #[arg(long, value_name = "N", default_value = "1M,10M,50M", value_delimiter = ',', value_parser = parse_keys)]
    pub keys: Vec<u64>,
    /// Print lines of JSON instead of the tables.
    #[arg(long)]
    pub json: bool,
}

/// A number of keys, with `k` for a thousand and `M` for a million.
fn parse_keys(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1_000),
        None => text.strip_suffix(['m', 'M']).map_or((text, 1), |digits| (digits, 1_000_000)),
    };
    let keys = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    // Each key needs 8 bytes for its hash and 16 more bytes in a filter's builder, so 10^9 keys need 24 GB.
    keys.filter(|keys| (16..=1_000_000_000).contains(keys))
        .ok_or_else(|| format!("`{text}` is not a number of keys from 16 to 1000M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_keys() {
        assert_eq!(["16", "200k", "50M"].map(parse_keys), [Ok(16), Ok(200_000), Ok(50_000_000)]);
        assert!(["", "15", "x", "2G", "1001M", "99999999999999999999M"].iter().all(|text| parse_keys(text).is_err()));
    }
}
