"""Courier for Hermes: registration, settings and the set-up of the platform."""

import os

from .adapter import CourierAdapter


def check_requirements() -> bool:
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        return False
    return True


def validate_config(config) -> bool:
    extra = getattr(config, "extra", {}) or {}
    return bool((os.getenv("COURIER_URL") or extra.get("url")) and (os.getenv("COURIER_TOKEN") or config.token))


def is_connected(config) -> bool:
    return validate_config(config)


def _env_enablement():
    url = os.getenv("COURIER_URL", "").strip()
    token = os.getenv("COURIER_TOKEN", "").strip()
    if not (url and token):
        return None
    seed = {"url": url, "token": token}
    home = os.getenv("COURIER_HOME_ROOM")
    if home:
        seed["home_channel"] = {"chat_id": home, "name": "Home"}
    return seed


def _apply_yaml_config(yaml_cfg, platform_cfg):
    """Older settings say serverUrl."""
    url = platform_cfg.get("serverUrl")
    return {"url": url} if url else None


def interactive_setup() -> None:
    from hermes_cli.setup import get_env_value, print_header, print_success, prompt, prompt_yes_no, save_env_value

    print_header("Courier")
    if get_env_value("COURIER_URL") and not prompt_yes_no("Set Courier up again?", False):
        return
    save_env_value("COURIER_URL", prompt("Server", default="https://chat.example.com"))
    save_env_value("COURIER_TOKEN", prompt("Token", password=True))
    print_success("Courier is set up")


def register(ctx):
    ctx.register_platform(
        name="courier",
        label="Courier",
        adapter_factory=lambda cfg: CourierAdapter(cfg),
        check_fn=check_requirements,
        validate_config=validate_config,
        is_connected=is_connected,
        required_env=["COURIER_URL", "COURIER_TOKEN"],
        install_hint="pip install aiohttp",
        setup_fn=interactive_setup,
        env_enablement_fn=_env_enablement,
        apply_yaml_config_fn=_apply_yaml_config,
        cron_deliver_env_var="COURIER_HOME_ROOM",
        allowed_users_env="COURIER_ALLOWED_USERS",
        allow_all_env="COURIER_ALLOW_ALL_USERS",
        max_message_length=2000,
        emoji="📯",
        pii_safe=False,
        allow_update_command=True,
        platform_hint="You are chatting via Courier.",
    )
