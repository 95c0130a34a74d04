//! Ports from a range, and an atomic swap: a session never loses its port without a new one.

use std::error::Error;

use timed_store::{Claim, SessionId, TimedStorage};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let open = |session: &str| {
        TimedStorage::<u16>::builder(folder.path().join("ports.json"))
            .session(SessionId::new(session)?)
            .open()
    };
    let (one, two) = (open("one")?, open("two")?);
    let range = || 3000..3002;
    assert_eq!(one.claim_any(range()).await?.granted().map(|l| *l.value()), Some(3000));
    assert_eq!(two.claim_any(range()).await?.granted().map(|l| *l.value()), Some(3001));

    // In use: session one keeps its port.
    assert!(matches!(one.claim(3001).await?, Claim::Busy { .. }));
    assert_eq!(one.restore().await?, Some(3000));

    // Free: session one swaps in one step.
    assert!(matches!(one.claim(4000).await?, Claim::Granted(_)));
    let seen = two.get_other_entries().await?;
    assert_eq!(seen.values().collect::<Vec<_>>(), [&4000]);
    println!("one moved from 3000 to 4000");
    Ok(())
}
