#!/usr/bin/env python3
"""Private homes for the real agent programs, in which they use fake_model.py.

    homes.py AGENT HOME URL [FOLDER]

Writes the configuration of AGENT (claude, codex, gemini, opencode, qwen) into HOME: the model server at URL, no
telemetry, no update check. With FOLDER the first-run questions (theme, login, trust of FOLDER) are answered; without
it they appear, as a new user meets them. Prints the environment that the program needs, one KEY=VALUE a line.
"""
import json
import os
import sys


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def claude(home, url, trusted):
    key = "sk-ant-dummy-000000000000000000000"
    if trusted:
        project = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True, "allowedTools": []}
        write(f"{home}/.claude.json", json.dumps({
            "hasCompletedOnboarding": True, "theme": "dark", "projects": {trusted: project},
            "customApiKeyResponses": {"approved": [key[-20:]], "rejected": []}}))
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1", "IS_SANDBOX": "1"}


def codex(home, url, trusted):
    text = f"""model = "gpt-fake"
model_provider = "fake"
check_for_update_on_startup = false
[features]
plugins = false
daemon_auto_start = false
[analytics]
enabled = false
[feedback]
enabled = false
[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
env_key = "FAKE_API_KEY"
wire_api = "responses"
"""
    if trusted:
        text += f'[projects."{trusted}"]\ntrust_level = "trusted"\n'
    write(f"{home}/.codex/config.toml", text)
    return {"FAKE_API_KEY": "dummy", "CODEX_HOME": f"{home}/.codex"}


def gemini(home, url, trusted):
    write(f"{home}/.gemini/settings.json", json.dumps({
        "privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}}}))
    if trusted:
        write(f"{home}/.gemini/trustedFolders.json", json.dumps({trusted: "TRUST_FOLDER"}))
    return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "dummy", "GEMINI_TELEMETRY_ENABLED": "false"}


def opencode(home, url, trusted):
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "fake", "models": {"fake-model": {"name": "fake"}},
                "options": {"baseURL": f"{url}/v1", "apiKey": "{env:FAKE_API_KEY}"}}
    write(f"{home}/.config/opencode/opencode.json", json.dumps({
        "autoupdate": False, "share": "disabled", "model": "fake/fake-model", "small_model": "fake/fake-model",
        "provider": {"fake": provider}}))
    # With a plugin it installs @opencode-ai/plugin, unless its lock file names it, and waits for that: offline 70 s.
    os.makedirs(f"{home}/.config/opencode/node_modules", exist_ok=True)
    write(f"{home}/.config/opencode/package-lock.json",
          '{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}')
    return {"FAKE_API_KEY": "dummy", "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_SHARE": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}


def qwen(home, url, trusted):
    return {"OPENAI_API_KEY": "dummy", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "fake-model"}


AGENTS = {"claude": claude, "codex": codex, "gemini": gemini, "opencode": opencode, "qwen": qwen}

if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[1] not in AGENTS:
        sys.exit(__doc__)
    name, home, url, *folder = sys.argv[1:]
    os.makedirs(home, exist_ok=True)
    for key, value in AGENTS[name](home, url, folder[0] if folder else None).items():
        print(f"{key}={value}")
