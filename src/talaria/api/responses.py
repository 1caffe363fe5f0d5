"""`/v1/responses`: the same turns, in the form of OpenAI's Responses. A response can be read, watched again from any
event on, and cancelled, also after a restart."""

from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response

from talaria.api.api_errors import wrong_field
from talaria.api.api_requests import ApiQuestion, ApiRun, RunState
from talaria.api.api_server import MAX_CHAT_BODY_BYTES, ApiCall, EventStream, encode, reply
from talaria.api.chat_completions import (
    CONVERSATION_HEADERS,
    MODEL,
    PLAIN,
    check_model,
    decode_big,
    headers_of,
    raise_failure,
    stop_when_hung_up,
    stream_output,
    wait_for,
)
from talaria.api.file_links import LinkedText
from talaria.api.sent_content import ContentPart, SentContent, read_content, read_text
from talaria.api.turn_output import Began, CallBegan, CallDone, Output, OutputEnded, TextAdded, TextDone, TextVoid
from talaria.core.messages import NO_USAGE, ToolResult, Usage
from talaria.gateway.envelope import read_received
from talaria.gateway.request_history import Speaker

STEP = 10_000_000
"""Between the numbers of two items' events: those of one item count the characters of its text. So each event has the
same number whoever asks, however the text came in pieces. An item that became void has no numbers of its own: what
follows has the same numbers for those who have not seen it."""
DONE = STEP // 2
"""The end of an item; so whoever comes back is told it, whatever was seen of a text that reads differently now."""
LAST = STEP - 1

Status = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]


class InputItem(msgspec.Struct, frozen=True):
    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | tuple[ContentPart, ...] | None = None


class ConversationRef(msgspec.Struct, frozen=True):
    id: str


class ResponsesRequest(msgspec.Struct, frozen=True):
    model: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [MODEL]})]
    input: str | tuple[InputItem, ...]
    instructions: str | None = None
    stream: bool | None = False
    background: bool | None = False
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    tools: tuple[Any, ...] | None = None
    metadata: dict[str, str] | None = None


class OutputText(msgspec.Struct, frozen=True):
    text: str
    type: Literal["output_text"] = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class MessageItem(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    content: tuple[OutputText, ...]
    role: Literal["assistant"] = "assistant"


class CallItem(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_call"):
    """A tool that Talaria has called: there is nothing for the client to do."""

    id: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "failed"]
    output: str | None = None
    error: str | None = None
    server_label: Literal["talaria"] = "talaria"


class InputTokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class OutputTokenDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "ResponseUsage":
        cached, reasoning = InputTokenDetails(usage.cache_read), OutputTokenDetails(usage.reasoning)
        return cls(usage.prompt, cached, usage.output, reasoning, usage.total)


class ResponseFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class TextFormat(msgspec.Struct, frozen=True):
    type: Literal["text"] = "text"


class TextSettings(msgspec.Struct, frozen=True):
    format: TextFormat = TextFormat()


class ReasoningSettings(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: float
    status: Status
    output: tuple[MessageItem | CallItem, ...] = ()
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    background: bool = False
    conversation: ConversationRef | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    metadata: dict[str, str] = {}
    model: str = MODEL
    object: Literal["response"] = "response"
    parallel_tool_calls: bool = True
    tool_choice: Literal["auto"] = "auto"
    tools: tuple[()] = ()
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning: ReasoningSettings = ReasoningSettings()
    store: bool = True
    text: TextSettings = TextSettings()
    truncation: Literal["disabled"] = "disabled"


class Echo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a response repeats of its request."""

    background: bool = False
    previous_response_id: str | None = None
    instructions: str | None = None
    metadata: dict[str, str] = {}


_requests = msgspec.json.Decoder(ResponsesRequest)
_echoes = msgspec.json.Decoder(Echo)


async def create_response(call: ApiCall) -> Response:
    body = await call.read_body(MAX_CHAT_BODY_BYTES)
    request = await decode_big(_requests, body)
    if check_model(request.model) == PLAIN:
        raise wrong_field(f"{PLAIN} answers at /v1/chat/completions.", "model")
    if request.tools:
        raise wrong_field("Tools of the client are not called here: Talaria calls its own.", "tools")
    if request.previous_response_id and request.conversation:
        raise wrong_field("Give previous_response_id or conversation, not both.", "previous_response_id")
    question = await _read_question(call, request, body)
    run = await call.requests.submit(call.token, question)
    view = ResponseView(call, run)
    is_streamed, is_background, is_kept = request.stream, request.background, bool(question.key or request.background)
    del body, request, question  # they may be large, and the turn long
    hang_up = stop_when_hung_up(call, run, is_kept=is_kept)
    if is_streamed:
        return await stream_output(call, run, view.pieces, hang_up)
    if is_background:
        return reply(view.response, headers=headers_of(run))
    return await wait_for(call, _wait(call, run, view), hang_up, headers_of(run))


async def _wait(call: ApiCall, run: ApiRun, view: "ResponseView") -> ResponseObject:
    async for output in call.requests.follow(run):
        for _ in view.add(output):
            pass
        if isinstance(output, OutputEnded) and output.outcome != "interrupted":
            raise_failure(output)
    return view.response


async def read_response(call: ApiCall) -> Response:
    run = await call.requests.find(call.token, call.path("id"))
    view = ResponseView(call, run)
    after, stream = call.number("starting_after", -1, 0, 10**15), call.request.query_params.get("stream", "false")
    if stream not in ("true", "false"):
        raise wrong_field("stream must be true or false.", "stream")
    if stream == "true":
        return EventStream(view.pieces(call.requests.follow(run), after), headers_of(run))
    state, outputs = await call.requests.read(run)
    for output in outputs:
        for _ in view.add(output):
            pass
    return reply(view.with_state(state), headers=headers_of(run))


async def cancel_response(call: ApiCall) -> Response:
    run = await call.requests.find(call.token, call.path("id"))
    await call.requests.stop(run, call.token)
    return await read_response(call)


async def _read_question(call: ApiCall, request: ResponsesRequest, body: bytes) -> ApiQuestion:
    instructions = [request.instructions or ""]
    history: list[tuple[Speaker, str]] = []
    asked: list[SentContent] = []
    if isinstance(request.input, str):
        asked.append(SentContent(request.input))
    else:
        # Reasoning and calls of earlier answers are known here.
        sent = [(number, item) for number, item in enumerate(request.input) if item.type == "message"]
        last_answer = max((number for number, item in sent if item.role == "assistant"), default=-1)
        for number, item in sent:
            match item.role:
                case "system" | "developer":
                    instructions.append(read_text(item.content))
                case "user" if number > last_answer:
                    asked.append(await read_content(item.content, f"input[{number}].content", call.server.uploads))
                case "user" | "assistant" as role:
                    history.append((role, read_text(item.content)))
                case None:
                    raise wrong_field("A message needs a role.", f"input[{number}].role")
    if not any(one.text.strip() or one.attachments for one in asked):
        raise wrong_field("The input must end with a message of the user, which is not blank.", "input")
    conversation = request.conversation
    if isinstance(conversation, ConversationRef):
        conversation = conversation.id
    named = next(filter(None, (call.request.headers.get(name) for name in CONVERSATION_HEADERS)), "")
    return ApiQuestion(
        text="\n\n".join(one.text for one in asked if one.text),
        attachments=tuple(file for one in asked for file in one.attachments),
        history=tuple(history),
        instructions="\n\n".join(filter(None, instructions)),
        conversation=conversation or ("" if request.previous_response_id else named),
        previous=request.previous_response_id or "",
        key=call.request.headers.get("idempotency-key", ""),
        digest=call.digest(body),
        echo=encode(
            Echo(
                bool(request.background),
                request.previous_response_id,
                request.instructions or None,
                request.metadata or {},
            )
        ).decode(),
        may_wait=bool(request.background)
        or call.request.headers.get("x-talaria-queue", "").lower() in ("1", "true", "yes"),
    )


class ResponseView:
    """A response as it grows."""

    def __init__(self, call: ApiCall, run: ApiRun) -> None:
        self._call = call
        self._run = run
        request = read_received(run.row.body).arrival.request
        echo = _echoes.decode(request.echo) if request is not None and request.echo else Echo()
        self.response = ResponseObject(
            id=f"resp_{run.digits}",
            created_at=int(run.sent_at),
            status="queued",
            conversation=ConversationRef(run.session),
            background=echo.background,
            previous_response_id=echo.previous_response_id,
            instructions=echo.instructions,
            metadata=echo.metadata,
        )
        self._items: list[MessageItem | CallItem] = []
        self._void: set[int] = set()
        """Items that are no part of the response any more."""
        self._open_calls: dict[str, int] = {}
        """Where their items are."""
        self._results: dict[str, ToolResult] = {}
        """Of calls that wait for earlier ones."""
        self._text: LinkedText = call.make_linked_text(run.session)
        self._shown: list[str] = []
        """Of the message that is being written."""
        self._used = 0
        """How many numbers have been given away where the next item will be."""

    def with_state(self, state: RunState) -> ResponseObject:
        """As the journal has it, if it is not complete."""
        status: Status = "incomplete" if state == "completed" and self.response.status == "incomplete" else state
        return msgspec.structs.replace(self.response, status=status, output=self._output)

    @property
    def _output(self) -> tuple[MessageItem | CallItem, ...]:
        return tuple(item for index, item in enumerate(self._items) if index not in self._void)

    @property
    def _base(self) -> int:
        """Of the numbers of the next item."""
        return (len(self._items) - len(self._void) + 1) * STEP

    async def pieces(self, outputs: AsyncGenerator[Output], after: int = -1) -> AsyncGenerator[bytes]:
        """The events after that number."""
        for number, event in self._begin():
            if number > after:
                yield _event(number, event)
        async for output in outputs:
            for number, event in self.add(output):
                if number <= after:
                    continue
                delta = event.get("delta")
                if isinstance(delta, str) and number - len(delta) < after:
                    event["delta"] = delta[after - number :]  # some of it was sent before
                yield _event(number, event)

    def _begin(self) -> Iterator[tuple[int, dict[str, Any]]]:
        yield 0, {"type": "response.created", "response": self.response}

    def add(self, output: Output) -> Iterator[tuple[int, dict[str, Any]]]:
        """The events that it amounts to, with their numbers."""
        match output:
            case Began():
                self.response = msgspec.structs.replace(self.response, status="in_progress")
                yield 1, {"type": "response.in_progress", "response": self.response}
            case TextAdded(text):
                yield from self._add_text(self._text.add(text))
            case TextDone():
                yield from self._add_text(self._text.end())
                yield from self._end_message("completed")
            case TextVoid():
                self._text = self._call.make_linked_text(self._run.session)
                yield from self._end_message("incomplete")
            case CallBegan(id, name, arguments):
                base, index = self._base + self._used, len(self._items)
                self._open_calls[id] = index
                self._items.append(CallItem(f"mcp_{id}", name, arguments, "in_progress"))
                self._used = 0
                item = {"output_index": index, "item": self._items[index]}
                yield base, {"type": "response.output_item.added", **item}
                reference = {"output_index": index, "item_id": f"mcp_{id}"}
                yield base + 1, {"type": "response.mcp_call.in_progress", **reference}
                yield base + 2, {"type": "response.mcp_call_arguments.done", "arguments": arguments, **reference}
            case CallDone(result):
                self._results[result.call_id] = result
                # Those that run side by side are told in their order, so that numbers grow.
                while self._open_calls and (first := next(iter(self._open_calls))) in self._results:
                    yield from self._end_call(self._open_calls.pop(first), self._results.pop(first))
            case OutputEnded():
                yield from self._end(output)
            case _:
                pass

    def _end_call(self, index: int, result: ToolResult) -> Iterator[tuple[int, dict[str, Any]]]:
        begun = self._items[index]
        assert isinstance(begun, CallItem)  # noqa: S101  (only calls are open)
        status = "failed" if result.is_error else "completed"
        said = {"error" if result.is_error else "output": result.text}
        self._items[index] = item = msgspec.structs.replace(begun, status=status, **said)
        base = self._base - STEP + DONE + 2 * (index - len(self._void))
        yield base, {"type": f"response.mcp_call.{status}", "output_index": index, "item_id": item.id}
        yield base + 1, {"type": "response.output_item.done", "output_index": index, "item": item}

    def _add_text(self, shown: str) -> Iterator[tuple[int, dict[str, Any]]]:
        if not shown:
            return
        index = len(self._items)
        base, id = self._base, f"msg_{self._run.digits}_{index}"
        if not self._shown:
            item = MessageItem(id, "in_progress", ())
            yield base + self._used, {"type": "response.output_item.added", "output_index": index, "item": item}
            place = {"item_id": id, "output_index": index, "content_index": 0}
            yield base + self._used + 1, {"type": "response.content_part.added", **place, "part": OutputText("")}
            self._used += 2
        self._shown.append(shown)
        self._used += len(shown)
        place = {"item_id": id, "output_index": index, "content_index": 0}
        event = {"type": "response.output_text.delta", **place, "delta": shown, "logprobs": ()}
        yield base + self._used - 1, event

    def _end_message(self, status: Literal["completed", "incomplete"]) -> Iterator[tuple[int, dict[str, Any]]]:
        if not self._shown:
            return
        index = len(self._items)
        text = "".join(self._shown)
        item = MessageItem(f"msg_{self._run.digits}_{index}", status, (OutputText(text),))
        base = self._base + (DONE if status == "completed" else self._used)
        self._items.append(item)
        self._shown.clear()
        if status == "completed":
            self._used = 0
        else:
            self._void.add(index)
            self._used += 3
        place = {"item_id": item.id, "output_index": index, "content_index": 0}
        yield base, {"type": "response.output_text.done", **place, "text": text, "logprobs": ()}
        yield base + 1, {"type": "response.content_part.done", **place, "part": item.content[0]}
        yield base + 2, {"type": "response.output_item.done", "output_index": index, "item": item}

    def _end(self, ended: OutputEnded) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from self._end_message("incomplete")
        status: Status = "completed"
        error: ResponseFailure | None = None
        details: IncompleteDetails | None = None
        match ended.outcome:
            case "completed" if ended.stop == "length":
                status, details = "incomplete", IncompleteDetails("max_output_tokens")
            case "completed":
                pass
            case "interrupted" | "dropped":
                status = "cancelled"
            case "failed":
                code = "rate_limit_exceeded" if ended.limit else "server_error"
                status, error = "failed", ResponseFailure(code, ended.error or "The model gave no answer.")
        self.response = msgspec.structs.replace(
            self.response,
            status=status,
            output=self._output,
            error=error,
            incomplete_details=details,
            usage=ResponseUsage.of(ended.usage or NO_USAGE),
        )
        name = {"completed": "completed", "failed": "failed"}.get(status, "incomplete")
        yield self._base + LAST, {"type": f"response.{name}", "response": self.response}


def _event(number: int, event: dict[str, Any]) -> bytes:
    content = encode({**event, "sequence_number": number})
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + content + b"\n\n"
