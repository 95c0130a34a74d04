use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};

/// Whether and how the connection to the server is encrypted.
///
/// ```
/// use agent_snapshot::Tls;
///
/// assert_eq!(Tls::default(), Tls::Off);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tls {
    /// Not encrypted: for a Unix socket, a private network or a local pooler. An address that asks
    /// for TLS (`sslmode=require`) is an error.
    #[default]
    Off,
    /// Encrypted, and the certificate of the server must be issued for its host name by an authority
    /// that the system trusts.
    #[cfg(feature = "postgres-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "postgres-tls")))]
    SystemRoots,
    /// Encrypted, and the certificate of the server must be issued for its host name by one of the
    /// authorities in this PEM text.
    #[cfg(feature = "postgres-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "postgres-tls")))]
    Roots(String),
}

/// A connection that is opened again when it breaks.
pub(super) struct Connection {
    config: Config,
    tls: Connector,
    client: Mutex<Option<Arc<Client>>>,
}

#[derive(Clone)]
enum Connector {
    Off,
    #[cfg(feature = "postgres-tls")]
    On(tokio_postgres_rustls::MakeRustlsConnect),
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// For the socket of one host. The handshake of that host gets the same time again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server that vanished without closing its connections is noticed after this time: by the timeout
/// if data is under way, by the keepalives (idle time and three probes) if an answer is awaited.
const VANISHED_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// The failure of a statement or of a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Driver(#[from] tokio_postgres::Error),
    #[error("the server did not accept a connection within {0:?}")]
    ConnectTimeout(Duration),
}

impl ConnectionError {
    /// The SQLSTATE, if the server reported the failure.
    fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Driver(error) => error.code(),
            Self::ConnectTimeout(_) => None,
        }
    }

    /// Whether the server refused the statement, and would refuse it again.
    pub(super) fn is_lasting_refusal(&self) -> bool {
        self.code().is_some_and(|code| !is_temporary(code))
    }

    /// Whether the same statement may succeed later.
    fn is_temporary(&self) -> bool {
        match (self, self.code()) {
            (_, Some(code)) => is_temporary(code),
            // Without a code the connection broke, or could not be opened.
            (Self::Driver(error), None) => !is_refused(error),
            (Self::ConnectTimeout(_), None) => true,
        }
    }
}

/// The delays before attempts 2 to 7 are 0.1, 0.2, 0.4, 0.8, 1.6 and 3.2 seconds: a failover may take
/// about six seconds.
const MAX_ATTEMPTS: u32 = 7;
const BASE_DELAY: Duration = Duration::from_millis(50);

impl Connection {
    pub(super) async fn open(mut config: Config, tls: &Tls) -> Result<Self, BoxedError> {
        set_defaults(&mut config);
        let connection = Self {
            tls: connector(tls)?,
            config,
            client: Mutex::new(None),
        };
        connection.client().await?;
        Ok(connection)
    }

    async fn client(&self) -> Result<Arc<Client>, ConnectionError> {
        let mut current = self.client.lock().await;
        if let Some(client) = current.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        // The driver bounds only the socket. A server that accepts it and never answers, such as a
        // stopped one, would block every caller.
        let limit = connect_limit(&self.config);
        let connected = tokio::time::timeout(limit, self.connect()).await;
        let connected = connected.map_err(|_| ConnectionError::ConnectTimeout(limit))?;
        let client = Arc::new(connected?);
        *current = Some(client.clone());
        Ok(client)
    }

    async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        // The task ends when the client is dropped or the connection breaks. A caller that waits for
        // an answer gets the error.
        match self.tls.clone() {
            Connector::Off => {
                let (client, driver) = self.config.connect(NoTls).await?;
                tokio::spawn(driver);
                Ok(client)
            }
            #[cfg(feature = "postgres-tls")]
            Connector::On(tls) => {
                let (client, driver) = self.config.connect(tls).await?;
                tokio::spawn(driver);
                Ok(client)
            }
        }
    }

    /// Runs one statement in a transaction of its own. It may run twice.
    pub(super) async fn query(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, ConnectionError> {
        let mut attempt = 0;
        loop {
            let result = match self.client().await {
                Ok(client) => {
                    let rows = client.query_typed(sql, parameters).await;
                    rows.map_err(ConnectionError::from)
                }
                Err(error) => Err(error),
            };
            match result {
                Err(error) if self.wait_to_retry(&error, &mut attempt).await => {}
                result => return result,
            }
        }
    }

    /// Runs several statements without parameters in one transaction.
    pub(super) async fn batch(&self, sql: &str) -> Result<(), ConnectionError> {
        Ok(self.client().await?.batch_execute(sql).await?)
    }

    /// Waits before the next attempt; `false` if there is none.
    async fn wait_to_retry(&self, error: &ConnectionError, attempt: &mut u32) -> bool {
        *attempt += 1;
        if !error.is_temporary() || *attempt >= MAX_ATTEMPTS {
            return false;
        }
        if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
            // The server became a standby. The address may name the new primary too.
            *self.client.lock().await = None;
        }
        tracing::debug!(%error, attempt, "retrying a PostgreSQL statement");
        tokio::time::sleep(BASE_DELAY * (1 << *attempt)).await;
        true
    }
}

/// Sets the options that the address does not set.
fn set_defaults(config: &mut Config) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(VANISHED_TIMEOUT);
    }
    // The driver has a value even if the address has none.
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(KEEPALIVE_RETRIES);
    }
    if config.get_application_name().is_none() {
        config.application_name("agent-snapshot");
    }
}

/// The time to connect to one of the hosts, with handshake and authentication.
fn connect_limit(config: &Config) -> Duration {
    let each = config.get_connect_timeout().copied();
    let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
    let hosts = u32::try_from(hosts.max(1)).unwrap_or(u32::MAX);
    each.unwrap_or(CONNECT_TIMEOUT)
        .saturating_mul(2)
        .saturating_mul(hosts)
}

/// An error of this side: a wrong type, an address that asks for TLS, or a certificate that is not
/// trusted.
fn is_refused(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    !error.is_closed()
        && (text.contains("serializing parameter")
            || text.contains("TLS") && !error.source().is_some_and(broke))
}

/// Whether a TLS handshake ended because the connection broke. The driver also reports a refused
/// certificate and a host name that is not valid as I/O errors, with these two kinds.
fn broke(source: &(dyn std::error::Error + 'static)) -> bool {
    source.downcast_ref::<io::Error>().is_some_and(|error| {
        !matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
        )
    })
}

/// The server may accept the same statement later.
///
/// Class 08 is the connection. PgBouncer reports every end of a connection as 08P01: the server behind
/// it crashed, could not be reached, or had no free connection in time.
fn is_temporary(code: &SqlState) -> bool {
    code.code().starts_with("08")
        || [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::TOO_MANY_CONNECTIONS,
        ]
        .contains(code)
}

fn connector(tls: &Tls) -> Result<Connector, BoxedError> {
    match tls {
        Tls::Off => Ok(Connector::Off),
        #[cfg(feature = "postgres-tls")]
        Tls::SystemRoots => {
            let found = rustls_native_certs::load_native_certs();
            encrypted(found.certs)
        }
        #[cfg(feature = "postgres-tls")]
        Tls::Roots(pem) => {
            use rustls::pki_types::CertificateDer;
            use rustls::pki_types::pem::PemObject;

            let certificates = CertificateDer::pem_slice_iter(pem.as_bytes());
            encrypted(certificates.collect::<Result<Vec<_>, _>>()?)
        }
    }
}

#[cfg(feature = "postgres-tls")]
fn encrypted(
    certificates: Vec<rustls::pki_types::CertificateDer<'static>>,
) -> Result<Connector, BoxedError> {
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err("there is no certificate of an authority".into());
    }
    // The provider is named: the default one panics if two are compiled in.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connect = tokio_postgres_rustls::MakeRustlsConnect::new(config);
    Ok(Connector::On(connect))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_sets_the_timeouts_and_the_rest_has_defaults() {
        let seconds = Duration::from_secs;
        let mut plain: Config = "postgres://one,two/db".parse().unwrap();
        set_defaults(&mut plain);
        assert_eq!(plain.get_tcp_user_timeout(), Some(&VANISHED_TIMEOUT));
        assert!(plain.get_keepalives());
        assert_eq!(plain.get_keepalives_idle(), KEEPALIVE_IDLE);
        assert_eq!(plain.get_keepalives_interval(), Some(KEEPALIVE_INTERVAL));
        assert_eq!(plain.get_keepalives_retries(), Some(KEEPALIVE_RETRIES));
        assert_eq!(connect_limit(&plain), seconds(20));

        let url = "postgres://one/db?connect_timeout=2&tcp_user_timeout=3&keepalives_idle=4\
            &keepalives_interval=5&keepalives_retries=6";
        let mut given: Config = url.parse().unwrap();
        set_defaults(&mut given);
        assert_eq!(given.get_tcp_user_timeout(), Some(&seconds(3)));
        assert_eq!(given.get_keepalives_idle(), seconds(4));
        assert_eq!(given.get_keepalives_interval(), Some(seconds(5)));
        assert_eq!(given.get_keepalives_retries(), Some(6));
        assert_eq!(connect_limit(&given), seconds(4));
    }

    #[test]
    fn a_lost_connection_is_temporary_also_if_a_pooler_reports_it() {
        #[track_caller]
        fn check(code: &str, expected: bool) {
            assert_eq!(is_temporary(&SqlState::from_code(code)), expected, "{code}");
        }
        // Of PgBouncer: "server conn crashed?".
        check("08P01", true);
        check("08006", true);
        check("57P01", true);
        check("40001", true);
        check("23505", false);
        check("42501", false);
    }

    #[test]
    fn a_handshake_that_broke_is_temporary_and_a_refused_certificate_is_not() {
        #[track_caller]
        fn check(source: BoxedError, expected: bool) {
            assert_eq!(broke(&*source), expected, "{source}");
        }
        check(io::Error::from(io::ErrorKind::UnexpectedEof).into(), true);
        check(io::Error::from(io::ErrorKind::ConnectionReset).into(), true);
        check(io::Error::from(io::ErrorKind::InvalidData).into(), false);
        check(io::Error::from(io::ErrorKind::InvalidInput).into(), false);
        check("server does not support TLS".into(), false);
    }
}
