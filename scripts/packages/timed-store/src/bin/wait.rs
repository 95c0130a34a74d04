//! A session waits for a value until its holder drops it, and another one watches the changes.

use std::error::Error;
use std::time::Duration;

use timed_store::{Change, SessionId, TimedStorage};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let open = |session: &str| {
        TimedStorage::<String>::builder(folder.path().join("desks.json"))
            .session(SessionId::new(session)?)
            .open()
    };
    let (one, two, observer) = (open("one")?, open("two")?, open("observer")?);
    let mut changes = observer.watch();

    let lease = one.claim("desk".to_owned()).await?.granted().ok_or("it was free")?;
    let token = lease.token();
    let change = changes.next().await?;
    assert!(matches!(&change, Change::Set { session, .. } if session.as_str() == "one"));

    let guard = one.keep_alive(lease)?.release_on_drop();
    let waiter = tokio::spawn(async move {
        two.claim_within("desk".to_owned(), Duration::from_secs(20)).await
    });
    tokio::task::yield_now().await;
    assert!(one.validate(token).await?);
    drop(guard);
    let later = waiter.await??.granted().ok_or("not free in time")?;
    assert!(later.token() > token);

    let lamp = one.slot("lamp")?;
    assert!(lamp.claim("lamp".to_owned()).await?.granted().is_some());
    println!("the desk moved from token {token} to {}", later.token());
    Ok(())
}
