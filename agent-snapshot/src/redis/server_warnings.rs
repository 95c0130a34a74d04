use redis::{Cmd, RedisResult, Value};

use super::connection::Connection;

/// The settings of a server that may lose data.
pub(super) async fn server_warnings(connection: &Connection) -> RedisResult<Vec<String>> {
    // Managed servers allow `INFO` where they forbid `CONFIG`. A cluster answers for each node, and
    // one node with such a setting is enough for a warning.
    let mut info = String::new();
    for section in ["memory", "persistence"] {
        let answer: Value = connection
            .query(Cmd::new().arg("INFO").arg(section))
            .await?;
        collect_text(&answer, &mut info);
    }
    let settings = |key: &str| {
        let found = info.lines().filter_map(|line| line.strip_prefix(key));
        found
            .filter_map(|value| value.strip_prefix(':'))
            .collect::<Vec<_>>()
    };
    let mut warnings = Vec::new();
    let is_bounded = settings("maxmemory").iter().any(|limit| *limit != "0");
    let evicting = settings("maxmemory_policy")
        .into_iter()
        .find(|policy| *policy != "noeviction");
    if let Some(policy) = evicting.filter(|_| is_bounded) {
        warnings.push(format!(
            "the server may evict snapshots (maxmemory-policy {policy}): set it to noeviction"
        ));
    }
    if settings("aof_enabled").contains(&"0") {
        warnings.push(
            "the server does not log every write to disk (appendonly no): saves since its last \
             dump are lost when it stops"
                .to_owned(),
        );
    }
    Ok(warnings)
}

fn collect_text(value: &Value, text: &mut String) {
    match value {
        Value::BulkString(bytes) => text.push_str(&String::from_utf8_lossy(bytes)),
        Value::SimpleString(line) => text.push_str(line),
        Value::VerbatimString { text: line, .. } => text.push_str(line),
        Value::Array(values) => values.iter().for_each(|value| collect_text(value, text)),
        Value::Map(pairs) => pairs
            .iter()
            .for_each(|(_, value)| collect_text(value, text)),
        _ => {}
    }
}
