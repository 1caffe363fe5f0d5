"""`/v1/chat/completions` and `/v1/models`, as OpenAI's clients know them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from secrets import token_hex
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from talaria.api.api_errors import DO_NOT_RETRY, ApiError, decode_body, limit_reached, wrong_field
from talaria.api.api_requests import ApiQuestion, ApiRun
from talaria.api.api_server import MAX_CHAT_BODY_BYTES, ApiCall, EventStream, encode, reply, until_hung_up
from talaria.api.plain_answers import answer_plainly
from talaria.api.sent_content import ContentPart, SentContent, read_content, read_text
from talaria.api.turn_output import (
    Answered,
    Asked,
    Began,
    CallBegan,
    CallDone,
    CallPrinted,
    Output,
    OutputEnded,
    TextAdded,
    TextDone,
    TextVoid,
    ThinkingAdded,
)
from talaria.core.aio import in_thread
from talaria.core.messages import Usage
from talaria.core.questions import Question
from talaria.gateway.request_history import BETWEEN, Speaker

MODEL = "talaria"
PLAIN = "talaria-plain"
BIG_BODY_BYTES = 1 << 20
HEADERS_WITHIN_S = 5.0
"""How long the answer may take to begin until the status is sent without knowing whether it will fail."""
SHOWN_CHARS = 120
CONVERSATION_HEADERS = ("x-talaria-session", "x-hermes-session-id", "x-openwebui-chat-id")

T = TypeVar("T")


class ChatMessage(msgspec.Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | tuple[ContentPart, ...] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True):
    model: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [MODEL, PLAIN]})]
    messages: tuple[ChatMessage, ...]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    tools: tuple[Any, ...] | None = None
    functions: tuple[Any, ...] | None = None


class PromptTokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionTokenDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ChatUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokenDetails
    completion_tokens_details: CompletionTokenDetails

    @classmethod
    def of(cls, usage: Usage) -> "ChatUsage":
        details = PromptTokenDetails(usage.cache_read), CompletionTokenDetails(usage.reasoning)
        return cls(usage.prompt, usage.output, usage.total, *details)


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    """What the model thought, and what it called."""


class ChatChoice(msgspec.Struct, frozen=True):
    message: ChatAnswer
    finish_reason: Literal["stop", "length"]
    index: int = 0
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: ChatUsage
    object: Literal["chat.completion"] = "chat.completion"


class Model(msgspec.Struct, frozen=True):
    id: str
    created: int = 0
    object: Literal["model"] = "model"
    owned_by: Literal["talaria"] = "talaria"


class ModelList(msgspec.Struct, frozen=True):
    data: tuple[Model, ...]
    object: Literal["list"] = "list"


_requests = msgspec.json.Decoder(ChatRequest)


async def list_models(_: ApiCall) -> Response:
    return reply(ModelList((Model(MODEL), Model(PLAIN))))


async def get_model(call: ApiCall) -> Response:
    return reply(Model(check_model(call.path("model"))))


def check_model(model: str) -> str:
    if model not in (MODEL, PLAIN):
        raise ApiError(
            404, f"There is no model {model[:100]!r}; use {MODEL} or {PLAIN}.", "model_not_found", param="model"
        )
    return model


async def decode_big(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """A large body does not hold up everybody else."""
    if len(body) < BIG_BODY_BYTES:
        return decode_body(decoder, body)
    return await in_thread(lambda: decode_body(decoder, body))


async def complete_chat(call: ApiCall) -> Response:
    body = await call.read_body(MAX_CHAT_BODY_BYTES)
    request = await decode_big(_requests, body)
    check_model(request.model)
    if request.tools or request.functions:
        raise wrong_field("Tools of the client are not called here: Talaria calls its own.", "tools")
    if request.n not in (None, 1):
        raise wrong_field("Only one answer at a time: n must be 1.", "n")
    if request.model == PLAIN:
        return await _complete_plainly(call, request)
    question = await _read_question(call, request, body)
    run = await call.requests.submit(call.token, question)
    format = ChatFormat(call, run, with_usage=bool(request.stream_options and request.stream_options.include_usage))
    is_streamed, is_kept = request.stream, bool(question.key)
    del body, request, question  # they may be large, and the turn long
    hang_up = stop_when_hung_up(call, run, is_kept=is_kept)
    if is_streamed:
        return await stream_output(call, run, format.pieces, hang_up)
    return await wait_for(call, format.whole(), hang_up, format.headers)


def stop_when_hung_up(call: ApiCall, run: ApiRun, *, is_kept: bool) -> Callable[[], Awaitable[None]]:
    """Nobody can come back for an answer without a key, so hanging up means stop. With a key it goes on."""

    async def hang_up() -> None:
        if not is_kept:
            await call.requests.stop(run, call.token)

    return hang_up


async def stream_output(
    call: ApiCall,
    run: ApiRun,
    format: Callable[[AsyncGenerator[Output]], AsyncGenerator[bytes]],
    hang_up: Callable[[], Awaitable[None]],
) -> Response:
    """A failure before the first word is an error; later it is part of the stream."""
    outputs = call.requests.follow(run)
    before: list[Output] = []
    step: asyncio.Future[Output] | None = None
    listening = asyncio.ensure_future(until_hung_up(call.request.receive))
    try:
        while not before or isinstance(before[-1], Began):
            step = asyncio.ensure_future(anext(outputs))
            await asyncio.wait([step, listening], timeout=HEADERS_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                await hang_up()
                raise ClientDisconnect  # noqa: TRY301  (what was begun is cleared away below)
            if not step.done():
                break
            before.append(step.result())
            step = None
            if isinstance(before[-1], OutputEnded):
                raise_failure(before[-1])
    except BaseException:
        if step is not None:
            step.cancel()
            await asyncio.wait([step])
        await outputs.aclose()
        raise
    finally:
        if not listening.done():
            listening.cancel()
            await asyncio.wait([listening])

    async def all_outputs() -> AsyncGenerator[Output]:
        try:
            for one in before:
                yield one
            if step is not None:
                yield await step
            async for one in outputs:
                yield one
        finally:
            if step is not None and not step.done():
                step.cancel()
                await asyncio.wait([step])
            await outputs.aclose()

    return EventStream(format(all_outputs()), headers_of(run), hang_up)


async def wait_for(
    call: ApiCall,
    work: Coroutine[Any, Any, object],
    hang_up: Callable[[], Awaitable[None]],
    headers: dict[str, str],
) -> Response:
    """The answer, unless the client hangs up before."""
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(until_hung_up(call.request.receive))
    try:
        await asyncio.wait([working, listening], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await hang_up()
            raise ClientDisconnect
        return reply(working.result(), headers=headers)
    finally:
        for task in (working, listening):
            task.cancel()
        await asyncio.wait([working, listening])


def headers_of(run: ApiRun) -> dict[str, str]:
    return {"X-Talaria-Session": run.session, "X-Talaria-Run": f"run_{run.digits}"}


def raise_failure(ended: OutputEnded) -> None:
    """Raises `ApiError` if there is no answer at all."""
    match ended.outcome:
        case "failed" if ended.limit:
            raise limit_reached(ended.error, ended.limit)
        case "failed":
            raise ApiError(502, ended.error or "The model gave no answer.", "turn_failed", headers=DO_NOT_RETRY)
        case "dropped":
            raise ApiError(409, ended.error, "dropped", headers=DO_NOT_RETRY)
        case _:
            pass


async def _read_question(call: ApiCall, request: ChatRequest, body: bytes) -> ApiQuestion:
    sent = [(number, one) for number, one in enumerate(request.messages) if one.role not in ("tool", "function")]
    answers = [number for number, one in sent if one.role == "assistant"]
    last_answer = max(answers, default=-1)
    instructions = [read_text(one.content) for _, one in sent if one.role in ("system", "developer")]
    history: list[tuple[Speaker, str]] = []
    asked: list[SentContent] = []
    for number, one in sent:
        if one.role == "user" and number > last_answer:
            asked.append(await read_content(one.content, f"messages[{number}].content", call.server.uploads))
        elif one.role in ("user", "assistant"):
            history.append(("user" if one.role == "user" else "assistant", read_text(one.content)))
    if not any(one.text.strip() or one.attachments for one in asked):
        raise wrong_field("The last message must be the user's, and not blank.", "messages")
    return ApiQuestion(
        text="\n\n".join(one.text for one in asked if one.text),
        attachments=tuple(file for one in asked for file in one.attachments),
        history=tuple(history),
        instructions="\n\n".join(filter(None, instructions)),
        conversation=next(filter(None, (call.request.headers.get(name) for name in CONVERSATION_HEADERS)), ""),
        key=call.request.headers.get("idempotency-key", ""),
        digest=call.digest(body),
        may_wait=call.request.headers.get("x-talaria-queue", "").lower() in ("1", "true", "yes"),
    )


async def _complete_plainly(call: ApiCall, request: ChatRequest) -> Response:
    messages = [(one.role, (await read_content(one.content, "messages", None)).text) for one in request.messages]
    id = token_hex(16)
    if not request.stream:

        async def whole() -> ChatCompletion:
            return completion(id, call.now, PLAIN, *await answer_plainly(call, messages))

        return await wait_for(call, whole(), do_nothing, {})
    text, usage = await answer_plainly(call, messages)

    async def pieces() -> AsyncGenerator[bytes]:
        chunks = Chunks(id, call.now, PLAIN)
        yield chunks.delta({"role": "assistant", "content": text})
        yield chunks.end("stop")
        if request.stream_options and request.stream_options.include_usage:
            yield chunks.usage(usage)
        yield DONE

    return EventStream(pieces())


async def do_nothing() -> None:
    """What is awaited is cancelled, and that is all."""


DONE = b"data: [DONE]\n\n"


def completion(
    id: str,
    created: float,
    model: str,
    text: str,
    usage: Usage,
    reason: Literal["stop", "length"] = "stop",
    thinking: str = "",
) -> ChatCompletion:
    message = ChatAnswer(content=text, reasoning_content=thinking or msgspec.UNSET)
    return ChatCompletion(f"chatcmpl-{id}", int(created), model, (ChatChoice(message, reason),), ChatUsage.of(usage))


class Chunks:
    """The pieces of a streamed completion."""

    def __init__(self, id: str, created: float, model: str) -> None:
        head = {"id": f"chatcmpl-{id}", "object": "chat.completion.chunk", "created": int(created), "model": model}
        self._head = b"data: " + encode(head)[:-1]

    def delta(self, delta: dict[str, str]) -> bytes:
        return self._head + b',"choices":[{"index":0,"delta":' + encode(delta) + b',"finish_reason":null}]}\n\n'

    def end(self, reason: str) -> bytes:
        return self._head + b',"choices":[{"index":0,"delta":{},"finish_reason":' + encode(reason) + b"}]}\n\n"

    def usage(self, usage: Usage) -> bytes:
        return self._head + b',"choices":[],"usage":' + encode(ChatUsage.of(usage)) + b"}\n\n"


class ChatFormat:
    """A turn as a completion. All that the model says is its content; what it thinks and calls is shown as reasoning,
    by front ends that show that."""

    def __init__(self, call: ApiCall, run: ApiRun, *, with_usage: bool) -> None:
        self._call = call
        self._run = run
        self._with_usage = with_usage
        self._text = call.make_linked_text(run.session)
        self._has_text = False
        """Some text is complete."""
        self._is_new = True
        """The next text begins."""
        self._begun_at = 0

    @property
    def headers(self) -> dict[str, str]:
        return headers_of(self._run)

    async def whole(self) -> ChatCompletion:
        said, thought = list[str](), list[str]()
        async for output in self._call.requests.follow(self._run):
            if isinstance(output, TextVoid):
                del said[self._begun_at :]
            for kind, text in self._parts(output, len(said)):
                (said if kind == "content" else thought).append(text)
            if isinstance(output, OutputEnded):
                raise_failure(output)
                text = "".join(said)
                reason = "length" if output.stop == "length" else "stop"
                return completion(
                    self._run.digits, self._run.sent_at, MODEL, text, output.usage, reason, "".join(thought).strip()
                )
        raise AssertionError

    async def pieces(self, outputs: AsyncGenerator[Output]) -> AsyncGenerator[bytes]:
        chunks = Chunks(self._run.digits, self._run.sent_at, MODEL)
        yield chunks.delta({"role": "assistant", "content": ""})
        async for output in outputs:
            if isinstance(output, TextVoid):
                yield chunks.delta({"content": BETWEEN})  # what was sent cannot be taken back
            for kind, text in self._parts(output, 0):
                yield chunks.delta({kind: text})
            if isinstance(output, OutputEnded):
                try:
                    raise_failure(output)
                except ApiError as fault:
                    yield b"data: " + encode(fault.body) + b"\n\n"
                    return
                yield chunks.end("length" if output.stop == "length" else "stop")
                if self._with_usage:
                    yield chunks.usage(output.usage)
                yield DONE

    def _parts(self, output: Output, said: int) -> list[tuple[Literal["content", "reasoning_content"], str]]:
        match output:
            case TextAdded(text):
                shown = self._text.add(text)
                if not shown:
                    return []
                between = BETWEEN if self._has_text and self._is_new else ""
                if self._is_new:
                    self._begun_at = said
                self._is_new = False
                return [("content", between + shown)]
            case TextDone():
                rest = self._text.end()
                between = BETWEEN if rest and self._has_text and self._is_new else ""
                self._has_text, self._is_new = self._has_text or bool(rest) or not self._is_new, True
                return [("content", between + rest)] if rest else []
            case TextVoid():
                self._text, self._is_new = self._call.make_linked_text(self._run.session), True
                return []
            case ThinkingAdded(text):
                return [("reasoning_content", text)]
            case CallBegan(_, name, arguments):
                return [("reasoning_content", f"\n⚙ {name} {_brief(arguments)}\n")]
            case CallDone(result):
                words = result.outcome.words if result.outcome and result.outcome.words else ""
                state = "failed" if result.is_error else "done"
                return [("reasoning_content", f"  {state}{f': {words}' if words else ''}\n")]
            case Asked(question):
                headline = question.headline if isinstance(question, Question) else question.text
                return [("reasoning_content", f"\n? {_brief(headline)}\n")]
            case Answered(closed):
                return [("reasoning_content", f"  {closed.sentence}\n")]
            case Began() | CallPrinted() | OutputEnded():
                return []


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 1]}…"
