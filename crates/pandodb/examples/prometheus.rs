//! Serves the statistics of a store to Prometheus, over HTTP on the loopback interface, using only std.
//!
//! ```text
//! cargo run --release -p pandodb --example prometheus -- events.pando 127.0.0.1:9187
//! curl http://127.0.0.1:9187/metrics
//! ```
//!
//! Only the process that has a store open can read the statistics of this store. Therefore each program serves its own
//! statistics: copy [`serve`] and [`render`]. In this example `main` also writes a row every 10 ms, so that the
//! statistics change.

use std::fmt::{Display, Write as _};
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use pandodb::{AddU64, KeyspaceOptions, Latency, Store, StoreStats};

/// The maximum size of an accepted request, in bytes.
const MOST_REQUEST: usize = 8 << 10;
/// The read and write timeout for a client.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "events.pando".into());
    let listener = TcpListener::bind(args.next().unwrap_or_else(|| "127.0.0.1:9187".into()))?;
    println!("http://{}/metrics", listener.local_addr()?);
    let store = Store::open(path)?;
    let ticks = store.keyspace_with("ticks", KeyspaceOptions::new().merge(AddU64))?;
    std::thread::spawn(move || serve(&store, &listener));
    for tick in 0u64.. {
        ticks.merge((tick % 1000).to_be_bytes(), 1u64.to_le_bytes())?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Answers requests without end, one request at a time.
fn serve(store: &Store, listener: &TcpListener) {
    for client in listener.incoming().flatten() {
        // A client that disconnects must not stop the server.
        let _ = answer(store, client);
    }
}

fn answer(store: &Store, mut client: TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let (mut request, mut some) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MOST_REQUEST {
        match client.read(&mut some)? {
            0 => break,
            n => request.extend_from_slice(&some[..n]),
        }
    }
    let (status, body) = if !request.starts_with(b"GET /metrics ") {
        ("404 Not Found", "ask for /metrics\n".into())
    } else {
        match store.stats() {
            Ok(stats) => ("200 OK", render(&stats)),
            Err(e) => ("500 Internal Server Error", format!("{e}\n")),
        }
    };
    let head = "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\nConnection: close";
    write!(client, "HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The statistics in Prometheus' text format, version 0.0.4.
fn render(stats: &StoreStats) -> String {
    let mut text = Text::default();
    let plain = |value: u64| vec![(String::new(), value)];
    for (name, help, value) in [
        ("logical_bytes", "Keys and values, superseded ones included.", stats.logical_bytes),
        ("disk_bytes", "Bytes that the data file occupies.", stats.disk_bytes),
        ("log_bytes", "Bytes of log that are kept.", stats.log_bytes),
        ("quarantined_bytes", "Freed bytes that become reusable after further checkpoints.", stats.quarantined_bytes),
        ("reserve_bytes", "Bytes reserved for a full disk.", stats.reserve_bytes),
        ("debt_bytes", "Bytes of pending background work.", stats.debt_bytes),
        ("snapshots", "Live snapshots and open iterators.", stats.snapshots),
        ("oldest_read_point_lag", "Operations since the oldest of them was made.", stats.oldest_read_point_lag),
        ("transactions_open", "Open transactions.", stats.transactions.open),
        ("transactions_bytes", "Memory of open transactions.", stats.transactions.bytes),
        ("healthy", "1, or 0 with trouble: see the program's log.", u64::from(stats.trouble.is_none())),
        ("memory_budget_bytes", "The memory budget.", stats.memory.budget),
        ("replayed_operations", "Operations that were replayed from the log at opening.", stats.replayed_operations),
    ] {
        text.metric(name, "gauge", help, plain(value));
    }
    let memory = &stats.memory;
    let parts = [("memtables", memory.memtables), ("pool", memory.pool), ("rows", memory.rows)];
    text.metric("memory_bytes", "gauge", "Memory, by part.", parts.map(|(part, value)| (label("part", part), value)));
    let written = &stats.written;
    let causes = [
        ("user", written.user),
        ("log", written.log),
        ("pack", written.pack),
        ("compact", written.compact),
        ("checkpoint", written.checkpoint),
    ];
    let causes = causes.map(|(cause, value)| (label("cause", cause), value));
    text.metric("written_bytes_total", "counter", "Bytes written, by cause; `user` is what callers wrote.", causes);
    for (name, help, value) in [
        ("data_written_bytes_total", "Bytes written to the data file.", written.data),
        ("data_read_bytes_total", "Bytes read from the data file.", stats.read_bytes),
        ("data_reads_total", "Reads of the data file.", stats.reads),
        ("lookups_total", "Keys looked up.", stats.gets),
        ("probed_blocks_total", "Blocks that lookups asked for, cached or not.", stats.probed_blocks),
        ("row_hits_total", "Lookups that the row cache answered.", stats.row_hits),
        ("false_positives_total", "Runs that lookups searched without finding the key.", stats.false_positives),
        ("checkpoints_total", "Checkpoints.", stats.checkpoints),
        ("transaction_commits_total", "Committed transactions.", stats.transactions.commits),
        ("transaction_reruns_total", "Transactions that were repeated after a conflict.", stats.transactions.reruns),
    ] {
        text.metric(name, "counter", help, plain(value));
    }
    text.summary("commit_seconds", "Latency of commits since the store was opened.", &stats.write_latency);
    let conflicts = [("key", stats.transactions.key_conflicts), ("range", stats.transactions.range_conflicts)];
    let conflicts = conflicts.map(|(kind, value)| (label("kind", kind), value));
    text.metric("transaction_conflicts_total", "counter", "Commits that failed, by what was changed.", conflicts);
    text.summary("sequencer_hold_seconds", "Time for which a commit excludes all others.", &stats.sequencer_hold);
    text.summary("get_seconds", "Latency of gets since the store was opened.", &stats.read_latency);
    let of_each = |value: fn(&pandodb::KeyspaceStats) -> u64| {
        stats.keyspaces.iter().map(move |keyspace| (label("keyspace", &keyspace.name), value(keyspace)))
    };
    text.metric("keyspace_records", "gauge", "Approximate number of keys.", of_each(|it| it.records));
    text.metric("keyspace_disk_bytes", "gauge", "Bytes of the keyspace's runs.", of_each(|it| it.index.disk_bytes));
    text.metric("keyspace_damaged_runs", "gauge", "Runs that cannot be read.", of_each(|it| it.index.damaged));
    text.0
}

/// The text of the metrics. Each group of lines with the same metric name begins with a help line and a type line.
#[derive(Default)]
struct Text(String);

impl Text {
    fn metric<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        self.head(name, kind, help);
        for (labels, value) in values {
            let _ = writeln!(self.0, "pandodb_{name}{labels} {value}");
        }
    }

    fn summary(&mut self, name: &str, help: &str, latency: &Latency) {
        self.head(name, "summary", help);
        for (quantile, us) in [
            ("0.5", latency.p50_us),
            ("0.99", latency.p99_us),
            ("0.999", latency.p99_9_us),
            ("0.9999", latency.p99_99_us),
            ("1", latency.max_us),
        ] {
            let _ = writeln!(self.0, "pandodb_{name}{} {}", label("quantile", quantile), us / 1e6);
        }
        let _ = writeln!(self.0, "pandodb_{name}_count {}", latency.count);
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP pandodb_{name} {help}\n# TYPE pandodb_{name} {kind}");
    }
}

/// A label in braces. The name of a keyspace may contain any character.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{{{name}=\"{value}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandodb::device::MemDevice;
    use std::collections::BTreeMap;

    fn store() -> Store {
        Store::builder("m").device(MemDevice::new()).memory_budget(8 << 20).open().unwrap()
    }

    /// The samples in a text of metrics. The key is the name of the metric with its labels. Each line is checked.
    fn samples(text: &str) -> BTreeMap<String, f64> {
        let (mut family, mut samples) = (String::new(), BTreeMap::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a name and a type");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                family = name.into();
            } else if !line.starts_with("# HELP pandodb_") {
                let (name, value) = line.rsplit_once(' ').expect("a name and a value");
                assert!(!family.is_empty() && name.starts_with(&family), "{line}");
                let bare = name.split('{').next().unwrap();
                assert!(bare.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
                assert!(samples.insert(name.into(), value.parse().expect("a number")).is_none(), "{line} comes twice");
            }
        }
        samples
    }

    #[test]
    fn every_metric_has_a_help_a_type_and_the_value_of_the_snapshot() {
        let store = store();
        let odd = store.keyspace("odd \"name\"\\\n").unwrap();
        (0..100u32).for_each(|i| odd.put(i.to_be_bytes(), "v").unwrap());
        odd.get(7u32.to_be_bytes()).unwrap();
        let stats = store.stats().unwrap();
        let samples = samples(&render(&stats));
        assert_eq!(samples["pandodb_keyspace_records{keyspace=\"odd \\\"name\\\"\\\\\\n\"}"], 100.0);
        assert_eq!(samples["pandodb_written_bytes_total{cause=\"user\"}"], 500.0);
        assert_eq!(samples["pandodb_lookups_total"], 1.0);
        assert_eq!(samples["pandodb_commit_seconds_count"], 100.0);
        assert_eq!(samples["pandodb_commit_seconds{quantile=\"1\"}"], stats.write_latency.max_us / 1e6);
        assert_eq!(samples["pandodb_healthy"], 1.0);
        assert_eq!(samples["pandodb_memory_budget_bytes"], f64::from(8 << 20));
        assert!(samples.len() > 35, "{}", samples.len());
        let ill = render(&{
            let mut ill = stats;
            ill.trouble = Some("the disk is full".into());
            ill
        });
        assert_eq!(self::samples(&ill)["pandodb_healthy"], 0.0);
    }

    #[test]
    fn it_is_served_over_http() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&store(), &listener));
        let ask = |what: &str| {
            let mut client = TcpStream::connect(address).unwrap();
            write!(client, "GET {what} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            answer
        };
        drop(TcpStream::connect(address).unwrap());
        let answer = ask("/metrics");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
        assert!(samples(body).contains_key("pandodb_debt_bytes"));
        assert!(ask("/").starts_with("HTTP/1.1 404"));
    }
}
