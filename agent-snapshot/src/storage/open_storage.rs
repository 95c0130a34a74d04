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
/// [`Error::InvalidUrl`] if the address is not valid or its feature is off; otherwise the errors
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
        "file" => open_file(url, path(rest)).await,
        "sqlite" if rest.is_empty() => Err(invalid(url, "the path of the database is missing")),
        "sqlite" => open_sqlite(url, path(rest)).await,
        "redis" | "rediss" | "redis+unix" => open_redis(url).await,
        _ => Err(invalid(
            url,
            "the known schemes are memory, file, sqlite, redis, rediss and redis+unix",
        )),
    }
}

/// `file:///a/b` is the path `/a/b`.
fn path(rest: &str) -> &str {
    match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        _ => rest,
    }
}

#[cfg(feature = "file")]
async fn open_file(_: &str, folder: &str) -> Result<Arc<dyn SnapshotStorage>, Error> {
    let folder = match folder {
        "" => crate::FileStorage::DEFAULT_FOLDER,
        folder => folder,
    };
    Ok(Arc::new(crate::FileStorage::open(folder).await?))
}

#[cfg(not(feature = "file"))]
async fn open_file(url: &str, _: &str) -> Result<Arc<dyn SnapshotStorage>, Error> {
    Err(invalid(
        url,
        "it needs the feature \"file\" of agent-snapshot",
    ))
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(_: &str, path: &str) -> Result<Arc<dyn SnapshotStorage>, Error> {
    Ok(Arc::new(crate::SqliteStorage::open(path).await?))
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(url: &str, _: &str) -> Result<Arc<dyn SnapshotStorage>, Error> {
    Err(invalid(
        url,
        "it needs the feature \"sqlite\" of agent-snapshot",
    ))
}

#[cfg(feature = "redis")]
async fn open_redis(url: &str) -> Result<Arc<dyn SnapshotStorage>, Error> {
    Ok(Arc::new(crate::RedisStorage::connect(url).await?))
}

#[cfg(not(feature = "redis"))]
async fn open_redis(url: &str) -> Result<Arc<dyn SnapshotStorage>, Error> {
    Err(invalid(
        url,
        "it needs the feature \"redis\" of agent-snapshot",
    ))
}

fn invalid(url: &str, reason: &str) -> Error {
    Error::InvalidUrl {
        url: without_password(url),
        reason: reason.to_owned(),
    }
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
