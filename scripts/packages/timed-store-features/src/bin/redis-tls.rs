//! A Redis server with TLS.

use timed_store::TimedStorage;

#[tokio::main]
async fn main() -> Result<(), timed_store::Error> {
    let store = TimedStorage::<String>::connect("rediss://redis.example.com/0", "operators").await?;
    println!("{:?}", store.get_other_entries().await?);
    Ok(())
}
