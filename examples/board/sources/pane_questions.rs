//! Requests for approval on the screens of agents.

use std::time::Duration;

use tmux_bus::AgentStatus;

use super::super::action::ActionError;
use super::super::change::Change;
use super::super::entities::{Decision, Permission};
use super::super::hub::{Feed, lock};
use super::cluster_source::{ClusterSource, new_id};

/// How many lines of a screen a question is.
const QUESTION_LINES: usize = 16;
/// How often and how long a program is given to redraw its screen after an answer.
const REDRAW_LOOKS: u32 = 40;
const REDRAW_LOOK: Duration = Duration::from_millis(50);

/// A request for approval in a pane.
#[derive(Clone)]
pub(super) struct Question {
    id: String,
    /// The end of the screen.
    text: String,
}

impl ClusterSource {
    pub(super) async fn show_questions(&self, feed: &Feed, agents: &[AgentStatus]) {
        for agent in agents {
            let asks =
                agent.exit.is_none() && agent.state == tmux_bus::AgentState::WaitingForApproval;
            let text = match asks {
                true => self.question(&agent.name).await,
                false => None,
            };
            let before = lock(&self.0.questions).get(&agent.name).cloned();
            if before.as_ref().map(|question| &question.text) == text.as_ref() {
                continue;
            }
            if let Some(Question { id, .. }) = before {
                lock(&self.0.questions).remove(&agent.name);
                let (decision, by) = (None, "pane".to_owned());
                feed.push(Change::PermissionSettled { id, decision, by });
            }
            if let Some(text) = text {
                let id = new_id("q");
                let question = Question {
                    id: id.clone(),
                    text: text.clone(),
                };
                lock(&self.0.questions).insert(agent.name.clone(), question);
                feed.push(Change::Permission(Permission {
                    id,
                    agent: agent.name.clone(),
                    tool: "asks in its pane".to_owned(),
                    detail: text,
                    ..Permission::default()
                }));
            }
        }
    }

    /// The question of an agent that waits for approval now.
    async fn question(&self, agent: &str) -> Option<String> {
        let found = self.cluster().explain(agent).await.ok()?;
        let asks = found.state == tmux_bus::AgentState::WaitingForApproval;
        asks.then(|| last_lines(&found.screen))
    }

    /// Presses the key for an answer.
    ///
    /// Race: the question can change between the last look and the key, if a person answers in the
    /// pane within these milliseconds.
    pub(super) async fn answer(
        &self,
        agent: &str,
        permission: &str,
        decision: Decision,
    ) -> std::result::Result<(), ActionError> {
        let asked = lock(&self.0.questions).get(agent).cloned();
        let asked = asked.filter(|question| question.id == permission);
        let still = self.question(agent).await;
        let Some(asked) = asked.filter(|asked| Some(&asked.text) == still.as_ref()) else {
            let message = "the pane shows another question";
            return Err(ActionError::new("gone", message));
        };
        let key = match decision {
            Decision::Allow if highlights_no(&asked.text) => {
                let message = "another choice is highlighted: answer in the pane";
                return Err(ActionError::new("failed", message));
            }
            Decision::Allow => "Enter",
            Decision::Deny => "Escape",
        };
        self.tmux(agent, "send-keys", &[key]).await?;
        // Until the program has drawn its screen anew, the old question must not count as a new one.
        let source = self.clone();
        let agent = agent.to_owned();
        tokio::spawn(async move {
            let mut looks = 0;
            while looks < REDRAW_LOOKS
                && source.question(&agent).await.as_ref() == Some(&asked.text)
            {
                looks += 1;
                tokio::time::sleep(REDRAW_LOOK).await;
            }
            let mut questions = lock(&source.0.questions);
            if questions.get(&agent).is_some_and(|now| now.id == asked.id) {
                questions.remove(&agent);
            }
        });
        Ok(())
    }
}

/// The end of a screen that holds a question.
fn last_lines(screen: &str) -> String {
    let lines: Vec<&str> = screen.lines().map(str::trim_end).collect();
    let filled = lines.into_iter().filter(|line| !line.is_empty());
    let filled: Vec<&str> = filled.collect();
    let start = filled.len().saturating_sub(QUESTION_LINES);
    filled[start..].join("\n")
}

/// Whether the mark of a menu stands before a refusal.
fn highlights_no(question: &str) -> bool {
    question.lines().any(|line| {
        let line = line.trim_start_matches([' ', '│', '|']);
        line.starts_with(['❯', '›', '●', '>'])
            && ["No", "Reject", "Deny"].iter().any(|no| line.contains(no))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_menu_on_a_refusal_is_seen() {
        assert!(!highlights_no(
            "Do you want to proceed?\n ❯ 1. Yes\n   2. No"
        ));
        assert!(highlights_no(
            "Do you want to proceed?\n   1. Yes\n ❯ 2. No"
        ));
        assert!(highlights_no("│ ● 3. No, suggest changes │"));
        assert!(!highlights_no("Allow once   Allow always   Reject"));
    }

    #[test]
    fn a_question_is_the_end_of_the_screen() {
        let screen = format!("{}question?\n\n\n", "older\n".repeat(50));
        assert_eq!(last_lines(&screen).lines().count(), QUESTION_LINES);
        assert!(last_lines(&screen).ends_with("question?"));
    }
}
