//! The entry of a session that does not refresh it expires. A manual clock moves the time.

use std::error::Error;
use std::time::{Duration, SystemTime};

use timed_store::blocking::TimedStorage;
use timed_store::{ManualClock, SessionId};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let clock = ManualClock::new(SystemTime::now());
    let open = |session: &str| {
        TimedStorage::<String>::builder(folder.path().join("desks.json"))
            .session(SessionId::new(session)?)
            .ttl(Duration::from_secs(60))
            .manual_clock(clock.clone())
            .open()
    };
    let (gone, waiting) = (open("gone")?, open("waiting")?);
    let first = gone.claim("desk".to_owned())?.granted().ok_or("it was free")?;

    clock.advance(Duration::from_secs(59));
    assert!(waiting.claim("desk".to_owned())?.granted().is_none());

    clock.advance(Duration::from_secs(2));
    let second = waiting.claim("desk".to_owned())?.granted().ok_or("it expired")?;
    assert!(second.token() > first.token());
    assert_eq!(gone.restore()?, None);
    println!("the claim expired after a minute");
    Ok(())
}
