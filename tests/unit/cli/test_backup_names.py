"""What a backup takes for a secret."""

from pathlib import Path

from talaria.cli.backup.archive import is_cache, is_secret, secrets_in


def test_secrets_are_known_by_their_names() -> None:
    assert all(map(is_secret, (".env", ".env.bak", "hermes/.env", "hermes/.env.old")))
    assert not any(map(is_secret, ("config.yaml", "hermes/config.yaml", "skills/.env", "hermes/skills/.env")))


def test_links_of_plugins_are_not_taken_for_their_secrets(tmp_path: Path) -> None:
    (tmp_path / "hermes").mkdir()
    (tmp_path / "hermes" / ".env").symlink_to("/etc/passwd")
    (tmp_path / ".env").touch()
    assert secrets_in(tmp_path) == [".env"]


def test_package_caches_of_projects_are_left_out_and_their_settings_are_not() -> None:
    assert is_cache(Path("projects/shop-1/cache"))
    assert is_cache(Path("projects/shop-1/cache/npm/x"))
    assert not any(map(is_cache, map(Path, ("projects/shop-1/config.yaml", "projects/cache", "skills/a/cache"))))
