"""Go, from Debian and without dependencies: built and tested with a cold and with a warm cache."""

from tests.scenarios.developer.day import Day, wanted

PROJECT = {
    "go.mod": "module shop\n\ngo 1.19\n",
    "main.go": 'package main\n\nimport (\n\t"fmt"\n\t"shop/words"\n)\n\nfunc main() { fmt.Println(words.Hello()) }\n',
    "words/words.go": 'package words\n\nfunc Hello() string { return "Hello" }\n',
    "words/words_test.go": (
        'package words\n\nimport "testing"\n\nfunc TestHello(t *testing.T) {\n'
        '\tif Hello() != "Hello" {\n\t\tt.Fail()\n\t}\n}\n'
    ),
}
COMPILES = "/compile -o"
"""What `go build -x` shows where something is compiled."""


async def spend(day: Day) -> None:
    wanted("go")
    day.write(PROJECT)
    await day.begin()
    tested = await day.run("go test ./words")
    assert "ok  \tshop/words" in tested
    assert "(cached)" not in tested
    built = await day.run("go build -x -o bin/shop . && bin/shop")
    assert COMPILES in built, built
    assert "Hello\n" in built
    await day.end()
    assert day.outside("bin/shop") == "Hello\n"

    await day.begin()
    assert "(cached)" in await day.run("go test ./words")
    built = await day.run("go build -x -o bin/shop . && bin/shop")
    assert COMPILES not in built, "what was compiled in the first session is in the project's cache"
    day.write({"words/words.go": 'package words\n\nfunc Hello() string { return "Hi" }\n'})
    assert "FAIL" in await day.fail("go test ./words")
    changed = await day.run("go build -x -o bin/shop . && bin/shop")
    assert COMPILES in changed, "the cache does not hide a change"
    assert "Hi\n" in changed
    await day.end()
    assert day.outside("bin/shop") == "Hi\n"
    assert not (day.person / ".cache").exists(), "the person's own cache is not touched"
    day.was_asked()
