use exec_core::{CommandConfig, Error, ExecutionContext, SessionId};

use crate::lab::{Lab, Scripted, files_in, script};

/// The error of a start that must have no other effect.
async fn refused(lab: &Lab, profile: Scripted, context: ExecutionContext, prompt: &str) -> Error {
    let service = lab
        .builder(profile)
        .log_dir(lab.path("logs"))
        .open()
        .unwrap();
    let request = exec_core::NewChatRequest {
        context,
        prompt: prompt.into(),
    };
    let error = service.start_new_chat(request).await.unwrap_err();
    assert!(service.active_executions().active_sessions().is_empty());
    assert!(service.executions().is_empty());
    assert!(service.history().load().unwrap().entries.is_empty());
    assert!(!lab.workspace().join("ran").exists(), "the agent ran");
    assert!(files_in(&lab.path("logs")).is_empty(), "a log file stays");
    drop(service);
    assert!(
        files_in(&lab.path("state/owners")).is_empty(),
        "a record stays"
    );
    error
}

fn agent() -> Scripted {
    script("touch ran").variant("plan", Some(CommandConfig::new("sh", ["-c", "touch ran"])))
}

fn missing(lab: &Lab) -> ExecutionContext {
    ExecutionContext::for_workspace("scripted", lab.path("nowhere")).unwrap()
}

#[tokio::test]
async fn the_three_specified_messages_are_exact() {
    let lab = Lab::new();
    let error = refused(&lab, agent(), missing(&lab), "go").await;
    let path = lab.path("nowhere");
    assert_eq!(
        error.to_string(),
        format!("Workspace path does not exist: {}", path.display())
    );

    let mut context = lab.context();
    context.profile_label = "unknown".into();
    let error = refused(&lab, agent(), context, "go").await;
    assert_eq!(error.to_string(), "Profile config not found for unknown");

    let error = refused(&lab, agent().binary(" "), lab.context(), "go").await;
    assert_eq!(error.to_string(), "Profile command not found for scripted");
}

#[tokio::test]
async fn the_checks_run_in_the_specified_order() {
    let lab = Lab::new();
    // Everything is wrong at first; each step repairs one thing.
    let bad = || agent().binary("").variant("empty", None);
    let mut context = missing(&lab).with_variant("typo");
    context.profile_label = "unknown".into();
    let error = refused(&lab, bad(), context.clone(), "").await;
    assert!(matches!(error, Error::WorkspaceMissing { .. }), "{error}");

    context.workspace_path = lab.workspace();
    let error = refused(&lab, bad(), context.clone(), "").await;
    assert!(matches!(error, Error::ProfileNotFound { .. }), "{error}");

    context.profile_label = "scripted".into();
    let error = refused(&lab, bad(), context.clone(), "").await;
    assert!(matches!(error, Error::UnknownVariant { .. }), "{error}");

    context.variant_label = Some("empty".into());
    let error = refused(&lab, bad(), context.clone(), "").await;
    assert!(matches!(error, Error::CommandNotFound { .. }), "{error}");

    context.variant_label = Some("plan".into());
    let error = refused(&lab, bad(), context, "").await;
    assert!(matches!(error, Error::EmptyPrompt { .. }), "{error}");
}

#[tokio::test]
async fn a_file_is_not_a_workspace() {
    let lab = Lab::new();
    std::fs::write(lab.path("file"), "").unwrap();
    let context = ExecutionContext::for_workspace("scripted", lab.path("file")).unwrap();
    let error = refused(&lab, agent(), context, "go").await;
    assert!(
        matches!(error, Error::WorkspaceNotDirectory { .. }),
        "{error}"
    );
}

#[tokio::test]
async fn an_unknown_variant_is_refused_with_the_known_ones() {
    let lab = Lab::new();
    let error = refused(&lab, agent(), lab.context().with_variant("paln"), "go").await;
    let text = error.to_string();
    assert!(
        text.contains("\"paln\"") && text.contains("it has: plan"),
        "{text}"
    );
}

#[tokio::test]
async fn an_empty_prompt_is_refused_unless_the_profile_accepts_it() {
    let lab = Lab::new();
    let error = refused(&lab, agent(), lab.context(), " \n").await;
    assert!(matches!(error, Error::EmptyPrompt { .. }), "{error}");

    let service = lab.service(agent().accepting_empty_prompts());
    service.start_new_chat(lab.new_chat("")).await.unwrap();
}

#[tokio::test]
async fn a_missing_binary_is_an_error_with_its_name_and_a_hint() {
    let lab = Lab::new();
    let error = refused(&lab, agent().binary("no-such-agent"), lab.context(), "go").await;
    let text = error.to_string();
    assert!(
        text.contains("no-such-agent") && text.contains("not on PATH"),
        "{text}"
    );

    let error = refused(&lab, agent().binary("./no-such-agent"), lab.context(), "go").await;
    assert!(error.to_string().contains("no file"), "{error}");
}

#[tokio::test]
async fn a_binary_that_cannot_be_started_is_an_error() {
    let lab = Lab::new();
    std::fs::write(lab.workspace().join("agent"), "not a program").unwrap();
    let error = refused(&lab, agent().binary("./agent"), lab.context(), "go").await;
    assert!(
        matches!(&error, Error::Spawn { binary, .. } if binary == "./agent"),
        "{error}"
    );
}

#[tokio::test]
async fn a_missing_wrapper_is_an_error() {
    let lab = Lab::new();
    let profile = agent().setup(|_, parameters| {
        parameters.wrapper = Some(exec_core::Wrapper {
            binary: "no-such-wrapper".into(),
            args: Vec::new(),
        });
    });
    let error = refused(&lab, profile, lab.context(), "go").await;
    assert!(matches!(&error, Error::BinaryNotFound { binary, .. } if binary == "no-such-wrapper"));
}

#[tokio::test]
async fn variables_with_invalid_names_are_refused() {
    let lab = Lab::new();
    for name in ["", "A=B", "A\0"] {
        let error = refused(&lab, agent().variable(name, "1"), lab.context(), "go").await;
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

#[tokio::test]
async fn ambiguous_ids_are_refused() {
    let lab = Lab::new();
    let mut context = lab.context();
    context.executor_type = "A:B".into();
    let error = refused(&lab, agent(), context, "go").await;
    assert!(
        matches!(
            error,
            Error::Invalid {
                what: "session id",
                ..
            }
        ),
        "{error}"
    );

    let option = "SCRIPTED:p:--help".parse::<SessionId>().unwrap_err();
    assert!(option.to_string().contains("starts with '-'"), "{option}");
    let bare = "0b54a3c7".parse::<SessionId>().unwrap_err();
    assert!(bare.to_string().contains("the agent's own id"), "{bare}");
}

#[tokio::test]
async fn a_follow_up_to_a_session_of_another_project_is_refused() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let other = SessionId::mint("SCRIPTED", "b3RoZXI").unwrap();
    let error = service
        .send_follow_up(lab.follow_up(&other, "hi"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::ForeignSession { .. }), "{error}");
    assert!(!lab.workspace().join("ran").exists());
}

#[tokio::test]
async fn relative_entries_of_path_are_ignored() {
    let lab = Lab::new();
    let folder = lab.workspace().join("bin");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink("/bin/sh", folder.join("planted")).unwrap();
    let profile = agent().binary("planted").variable("PATH", "bin:.:");
    let error = refused(&lab, profile, lab.context(), "go").await;
    assert!(matches!(error, Error::BinaryNotFound { .. }), "{error}");
}

#[tokio::test]
async fn an_agent_that_looks_like_an_option_of_the_wrapper_is_refused() {
    let lab = Lab::new();
    let profile = agent().binary("--version").setup(|_, parameters| {
        parameters.wrapper = Some(exec_core::Wrapper {
            binary: "env".into(),
            args: Vec::new(),
        });
    });
    let error = refused(&lab, profile, lab.context(), "go").await;
    assert!(
        matches!(&error, Error::BinaryNotFound { binary, .. } if binary == "--version"),
        "{error}"
    );
}

#[tokio::test]
async fn a_state_folder_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let state = lab.path("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o777)).unwrap();
    let error = lab.builder(agent()).open().unwrap_err();
    assert!(
        matches!(&error, Error::NotPrivate { path, .. } if *path == state),
        "{error}"
    );
}

#[tokio::test]
async fn a_log_folder_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let logs = lab.path("logs");
    std::fs::create_dir(&logs).unwrap();
    std::fs::set_permissions(&logs, PermissionsExt::from_mode(0o777)).unwrap();
    let error = refused(&lab, agent(), lab.context(), "go").await;
    assert!(
        matches!(&error, Error::NotPrivate { path, .. } if *path == logs),
        "{error}"
    );
}
