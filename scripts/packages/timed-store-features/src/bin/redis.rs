//! A Redis server with a replica that must acknowledge.

use std::time::Duration;

use timed_store::TimedStorage;

#[tokio::main]
async fn main() -> Result<(), timed_store::Error> {
    let store = TimedStorage::<String>::redis_builder("redis://127.0.0.1/0", "operators")
        .acknowledged_by(1, Duration::from_millis(500))
        .connect()
        .await?;
    let limit = Duration::from_secs(60);
    if let Some(lease) = store.claim_within("tsukuyomi".to_owned(), limit).await?.granted() {
        let guard = store.keep_alive(lease)?;
        println!("token {} of store {}", guard.lease().token(), guard.lease().store_id());
        guard.release().await?;
    }
    Ok(())
}
