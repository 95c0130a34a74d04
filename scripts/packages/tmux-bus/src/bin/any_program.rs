//! Any program in a pane, without a cluster and without configuration. Its end is an error of the
//! pending request.

use std::error::Error;
use std::time::Duration;

use tmux_bus::{Launch, Server};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let server = Server::builder("programs")
        .runtime_dir(folder.path().join("run"))
        .start()
        .await?;
    let pane = server
        .open_pane(&Launch::new("sh config/agent.sh READY"))
        .await?;
    let io = server.pane_io();
    let sent = io.send_message(pane, "hello").await?;
    let answer = io.get_response(sent, "READY", Duration::from_secs(20)).await?;
    assert!(answer.ends_with("heard hello\nREADY"), "{answer}");

    let short_lived = server
        .open_pane(&Launch::new("read -r line; echo only this; exit 3"))
        .await?;
    let sent = io.send_message(short_lived, "hello").await?;
    let Err(error) = io.get_response(sent, "READY", Duration::from_secs(20)).await else {
        return Err("expected an error: the program ended without an answer".into());
    };
    assert!(error.to_string().contains('3'), "{error}");
    server.stop(Duration::from_secs(2)).await?;
    println!("{answer}\n{error}");
    Ok(())
}
