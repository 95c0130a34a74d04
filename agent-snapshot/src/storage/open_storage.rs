use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
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
/// | `postgres://USER@HOST/DB`, `postgres:host=/SOCKET dbname=DB` | `PostgresStorage` | `postgres` |
///
/// A [`StorageLoader`] also opens storages of your own.
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
/// [`Error::Invalid`] if the address is not valid or its feature is off; an unknown scheme names the
/// known ones. Otherwise the errors of the storage's own `open` or `connect`.
///
/// # Cancel safety
///
/// Cancel safe: at most an empty folder or database is left.
pub async fn open_storage(url: &str) -> Result<Arc<dyn SnapshotStorage>, Error> {
    StorageLoader::new().open(url).await
}

/// Opens storages by the scheme of their address: those of this crate, and registered ones.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::{MemoryStorage, SnapshotStorage, StorageLoader};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let loader = StorageLoader::new().register("mine", |_address| async {
///     let storage: Arc<dyn SnapshotStorage> = Arc::new(MemoryStorage::new());
///     Ok(storage)
/// });
/// let storage = loader.open("mine://host/agents").await?;
/// assert!(storage.list().await?.is_empty());
///
/// let error = loader.open("yours:").await.unwrap_err();
/// assert!(error.to_string().contains("mine"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct StorageLoader {
    openers: BTreeMap<String, Opener>,
}

type Opened = Result<Arc<dyn SnapshotStorage>, Error>;
type Opener = Arc<dyn Fn(String) -> Pin<Box<dyn Future<Output = Opened> + Send>> + Send + Sync>;

/// The schemes of this crate, with the features that they need.
const BUILT_IN: [(&str, &str); 6] = [
    ("file", "file"),
    ("memory", ""),
    ("postgres", "postgres"),
    ("redis", "redis"),
    ("redis+unix", "redis"),
    ("sqlite", "sqlite"),
];

impl StorageLoader {
    /// A loader with the storages of this crate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a scheme, or replaces one, also one of this crate. `open` gets the whole address.
    #[must_use]
    pub fn register<F, O>(mut self, scheme: &str, open: F) -> Self
    where
        F: Fn(String) -> O + Send + Sync + 'static,
        O: Future<Output = Opened> + Send + 'static,
    {
        let opener: Opener = Arc::new(move |address| Box::pin(open(address)));
        self.openers.insert(scheme.to_owned(), opener);
        self
    }

    /// The known schemes, in ascending order.
    fn schemes(&self) -> Vec<&str> {
        let built_in = BUILT_IN.iter().map(|(scheme, _)| *scheme);
        let registered = self.openers.keys().map(String::as_str);
        let mut schemes: Vec<&str> = built_in.chain(registered).collect();
        schemes.sort_unstable();
        schemes.dedup();
        schemes
    }

    /// Opens a storage.
    ///
    /// # Errors
    ///
    /// As [`open_storage`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at most an empty folder or database is left.
    pub async fn open(&self, url: &str) -> Opened {
        let known = || format!("the known schemes are {}", self.schemes().join(", "));
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(invalid(url, &format!("it has no scheme; {}", known())));
        };
        if let Some(open) = self.openers.get(scheme) {
            return open(url.to_owned()).await;
        }
        match scheme {
            "memory" if rest.is_empty() => Ok(Arc::new(MemoryStorage::new())),
            "memory" => Err(invalid(url, "\"memory:\" takes no path")),
            #[cfg(feature = "file")]
            "file" => {
                let folder = Some(path(url, rest)?).filter(|folder| !folder.is_empty());
                let folder = folder.unwrap_or(crate::FileStorage::DEFAULT_FOLDER);
                Ok(Arc::new(crate::FileStorage::open(folder).await?))
            }
            "sqlite" if rest.is_empty() => Err(invalid(url, "the path of the database is missing")),
            #[cfg(feature = "sqlite")]
            "sqlite" => Ok(Arc::new(
                crate::SqliteStorage::open(path(url, rest)?).await?,
            )),
            #[cfg(feature = "redis")]
            "redis" | "redis+unix" => Ok(Arc::new(crate::RedisStorage::connect(url).await?)),
            #[cfg(feature = "postgres")]
            "postgres" => {
                // Behind the scheme is an address, or a connection string of libpq.
                let text = if rest.starts_with("//") { url } else { rest };
                Ok(Arc::new(crate::PostgresStorage::connect(text).await?))
            }
            "rediss" => Err(invalid(url, "TLS is not supported; use a tunnel")),
            _ => match BUILT_IN.iter().find(|(name, _)| *name == scheme) {
                Some((_, feature)) => {
                    let reason = format!("it needs the feature \"{feature}\" of agent-snapshot");
                    Err(invalid(url, &reason))
                }
                None => Err(invalid(url, &known())),
            },
        }
    }
}

impl fmt::Debug for StorageLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageLoader")
            .field("schemes", &self.schemes())
            .finish()
    }
}

/// `file:///a/b` is the path `/a/b`.
#[cfg(any(feature = "file", feature = "sqlite"))]
fn path<'a>(url: &str, rest: &'a str) -> Result<&'a str, Error> {
    match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => Ok(path),
        // Two slashes begin a host. As a path they would be the root folder.
        Some(_) => Err(invalid(
            url,
            "two slashes need a third one; a relative path has none",
        )),
        None => Ok(rest),
    }
}

fn invalid(url: &str, reason: &str) -> Error {
    Error::invalid("storage address", &without_password(url), reason)
}

/// The address without its password, which is before the host or in the query.
///
/// A password that is not escaped may contain any character, also `@` and `?`. So the text behind the
/// last `@` is the host only if no `?` stands before it: otherwise it may be the end of a password,
/// and nothing but the scheme is shown.
pub(crate) fn without_password(url: &str) -> String {
    if url.starts_with("file:") || url.starts_with("sqlite:") {
        return url.to_owned();
    }
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '+';
    let parts = url.split_once(':');
    let is_address =
        parts.is_some_and(|(scheme, rest)| scheme.chars().all(is_letter) && rest.starts_with("//"));
    if !is_address && url.contains("password") {
        // `host=… password=…`
        return "…".to_owned();
    }
    let Some((scheme, rest)) = parts else {
        // Without a scheme a name in front of `@` may be anything.
        return match url.rsplit_once('@') {
            Some((_, host)) => format!("…@{host}"),
            None => url.to_owned(),
        };
    };
    let (address, query) = match rest.split_once('?') {
        Some((_, query)) if query.contains('@') => return format!("{scheme}://…"),
        Some((address, _)) => (address, "?…"),
        None => (rest, ""),
    };
    match address.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://…@{host}{query}"),
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
            ("redis://user:s@c:r/e@host/1", "redis://…@host/1"),
            ("redis://user:s@c:r/e?t@host/1", "redis://…"),
            (
                "redis+unix:///run/redis.sock?pass=sec@ret",
                "redis+unix://…",
            ),
            ("redis://user:secret@host/1?a=b", "redis://…@host/1?…"),
            ("postgres://host/db?password=a@secret", "postgres://…"),
            ("secret@host", "…@host"),
            ("redis:user:secret@host", "redis://…@host"),
            (
                "redis+unix:///run/redis.sock?db=1&pass=secret",
                "redis+unix:///run/redis.sock?…",
            ),
            ("rds://:secret@host?x=secret", "rds://…@host?…"),
            ("file:/home/me@work/x", "file:/home/me@work/x"),
            ("agents", "agents"),
            ("host=/run password=secret:x", "…"),
            ("host=/run password=secret://x", "…"),
            ("postgres:host=/run password=secret://x", "…"),
            ("file:/home/me/password", "file:/home/me/password"),
        ] {
            assert_eq!(without_password(url), shown, "{url}");
        }
    }
}
