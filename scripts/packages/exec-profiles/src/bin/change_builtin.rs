//! A program saves a built-in profile with another model to the user's file.

use std::error::Error;

use exec_profiles::{ProfileRegistry, UserProfile};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("profiles.toml");
    std::fs::write(&file, "# mine\n")?;
    let registry = ProfileRegistry::new();
    registry.load_user_file(&file)?;

    let mut profile = UserProfile::default();
    profile.append_args = vec!["--model=opus".into()];
    registry.save_user_profile("claude-code", &profile)?;

    let command = registry
        .get_command("claude-code", None)
        .ok_or("it is built in")?;
    assert_eq!(command.args.last().map(String::as_str), Some("--model=opus"));
    let text = std::fs::read_to_string(&file)?;
    assert!(text.starts_with("# mine\n"), "{text}");
    println!("{text}");
    Ok(())
}
