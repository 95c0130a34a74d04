use std::sync::Arc;

use super::{MemoryStorage, SnapshotStorage};
use crate::Error;

/// Opens a storage by its address, as a configuration file names it.
///
/// | address | storage | feature |
/// |---|---|---|
/// | `memory:` | [`MemoryStorage`] | |
/// | `file:DIR`, `file:` for `./data/snapshots` | `FileStorage` | `file` |
/// | `sqlite:PATH` | `SqliteStorage` | `sqlite` |
/// | `redis://HOST:PORT/DB`, `redis+unix:///SOCKET` | `RedisStorage` | `redis` |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = agent_snapshot::open_storage("memory:").await?;
/// assert!(storage.list().await?.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Error::Invalid`] if the address is not valid or its feature is off; otherwise the errors
/// of the storage's own `open` or `connect`.
///
/// # Cancel safety
///
/// Cancel safe: at most an empty folder or database is left.
pub async fn open_storage(url: &str) -> Result<Arc<dyn SnapshotStorage>, Error> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(invalid(url, "it has no scheme such as \"file:\""));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryStorage::new())),
        "memory" => Err(invalid(url, "\"memory:\" takes no path")),
        #[cfg(feature = "file")]
        "file" => {
            let folder = Some(path(rest)).filter(|folder| !folder.is_empty());
            let folder = folder.unwrap_or(crate::FileStorage::DEFAULT_FOLDER);
            Ok(Arc::new(crate::FileStorage::open(folder).await?))
        }
        "sqlite" if rest.is_empty() => Err(invalid(url, "the path of the database is missing")),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(crate::SqliteStorage::open(path(rest)).await?)),
        #[cfg(feature = "redis")]
        "redis" | "redis+unix" => Ok(Arc::new(crate::RedisStorage::connect(url).await?)),
        #[allow(unreachable_patterns, reason = "reachable if a feature is off")]
        "file" | "sqlite" | "redis" | "redis+unix" => {
            let feature = scheme.trim_end_matches("+unix");
            let reason = format!("it needs the feature \"{feature}\" of agent-snapshot");
            Err(invalid(url, &reason))
        }
        "rediss" => Err(invalid(url, "TLS is not supported; use a tunnel")),
        _ => Err(invalid(
            url,
            "the known schemes are memory, file, sqlite, redis and redis+unix",
        )),
    }
}

/// `file:///a/b` is the path `/a/b`.
#[cfg(any(feature = "file", feature = "sqlite"))]
fn path(rest: &str) -> &str {
    match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        _ => rest,
    }
}

fn invalid(url: &str, reason: &str) -> Error {
    Error::invalid("storage address", &without_password(url), reason)
}

/// The address without its password, which is before the host or in the query.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else {
        return url.to_owned();
    };
    if ["file", "sqlite"].contains(&scheme) {
        return url.to_owned();
    }
    let (address, query) = match rest.split_once('?') {
        Some((address, _)) => (address, "?…"),
        None => (rest, ""),
    };
    match rest.rsplit_once('@') {
        // A password that is not escaped may contain any character, also `@` and `?`.
        Some((_, host)) => {
            let host = host.split('?').next().unwrap_or_default();
            format!("{scheme}://…@{host}{query}")
        }
        None => format!("{scheme}:{address}{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (url, shown) in [
            ("redis://host:6379/1", "redis://host:6379/1"),
            ("redis://user:secret@host/1", "redis://…@host/1"),
            ("redis://user:s@c:r/e?t@host/1", "redis://…@host/1?…"),
            ("redis:user:secret@host", "redis://…@host"),
            (
                "redis+unix:///run/redis.sock?db=1&pass=secret",
                "redis+unix:///run/redis.sock?…",
            ),
            ("rds://:secret@host?x=secret", "rds://…@host?…"),
            ("file:/home/me@work/x", "file:/home/me@work/x"),
            ("agents", "agents"),
        ] {
            assert_eq!(without_password(url), shown, "{url}");
        }
    }
}
