"""All operations of the HTTP API, in one table: the server routes by it, and the OpenAPI document is made from it."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from starlette.responses import Response

from talaria import __version__
from talaria.api import api_conversations as conversations
from talaria.api import chat_completions, responses
from talaria.api.api_errors import ErrorBody
from talaria.api.api_server import JSON, ApiCall, Operation, encode, reply
from talaria.store.api_ports import Scope

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class HealthReport(msgspec.Struct, frozen=True):
    ok: bool
    complaints: tuple[str, ...] = ()


async def health(call: ApiCall) -> Response:
    complaints = tuple(call.server.monitor.complaints())
    return reply(HealthReport(not complaints, complaints), 503 if complaints else 200)


async def ready(call: ApiCall) -> Response:
    is_ready = call.server.monitor.is_ready()
    return reply(HealthReport(is_ready), 200 if is_ready else 503)


async def metrics(call: ApiCall) -> Response:
    return Response(await call.server.monitor.metrics(), media_type=PROMETHEUS)


async def openapi(_: ApiCall) -> Response:
    return Response(encode_document(), media_type=JSON)


_KEY = {"Idempotency-Key": "The same for the same request: a repeated one gets the answer of the first."}
_NAMES = {
    "X-Talaria-Session": "The id of a conversation, or a name of your own for it. Also X-Hermes-Session-Id and "
    "X-OpenWebUI-Chat-Id.",
    "X-Talaria-Queue": "true: wait until the conversation is free, in place of 409.",
}
_LIMIT = {"limit": "How many at most."}
_LAST = {"Last-Event-ID": "The id of the last event that was read."}


def _operation(method: str, path: str, scope: Scope, run: Any, summary: str, **more: Any) -> Operation:
    return Operation(method=method, path=path, scope=scope, run=run, summary=summary, **more)


OPERATIONS: Sequence[Operation] = (
    _operation(
        "POST",
        "/v1/chat/completions",
        "chat",
        chat_completions.complete_chat,
        "Ask, in the form of OpenAI's chat completions",
        takes=chat_completions.ChatRequest,
        gives=chat_completions.ChatCompletion,
        headers=_KEY | _NAMES,
        errors=(400, 404, 408, 409, 413, 422, 502),
        is_stream=True,
    ),
    _operation(
        "POST",
        "/v1/responses",
        "chat",
        responses.create_response,
        "Ask, in the form of OpenAI's responses",
        takes=responses.ResponsesRequest,
        gives=responses.ResponseObject,
        headers=_KEY | _NAMES,
        errors=(400, 404, 408, 409, 413, 422, 502),
        is_stream=True,
    ),
    _operation(
        "GET",
        "/v1/responses/{id}",
        "chat",
        responses.read_response,
        "Read a response, or watch it again",
        gives=responses.ResponseObject,
        queries={"stream": "true: as events.", "starting_after": "Only events with a greater sequence_number."},
        errors=(400, 404),
        is_stream=True,
    ),
    _operation(
        "POST",
        "/v1/responses/{id}/cancel",
        "chat",
        responses.cancel_response,
        "Cancel a response",
        gives=responses.ResponseObject,
        errors=(400, 404),
    ),
    _operation(
        "GET", "/v1/models", "chat", chat_completions.list_models, "List the models", gives=chat_completions.ModelList
    ),
    _operation(
        "GET",
        "/v1/models/{model}",
        "chat",
        chat_completions.get_model,
        "Describe a model",
        gives=chat_completions.Model,
        errors=(404,),
    ),
    _operation(
        "GET",
        "/v1/runs",
        "runs",
        conversations.list_runs,
        "List the latest requests of this token",
        gives=conversations.RunList,
        queries=_LIMIT,
        errors=(400,),
    ),
    _operation(
        "GET",
        "/v1/runs/{id}",
        "runs",
        conversations.get_run,
        "Describe a run",
        gives=conversations.RunObject,
        errors=(404,),
    ),
    _operation(
        "GET",
        "/v1/runs/{id}/events",
        "runs",
        conversations.watch_run,
        "Watch a run",
        headers=_LAST,
        errors=(404,),
        is_stream=True,
    ),
    _operation(
        "POST",
        "/v1/runs/{id}/stop",
        "runs",
        conversations.stop_run,
        "Stop a run",
        gives=conversations.RunObject,
        errors=(400, 404),
    ),
    _operation(
        "POST",
        "/v1/runs/{id}/steer",
        "runs",
        conversations.steer_run,
        "Give the model a note in its next round",
        takes=conversations.Steering,
        gives=conversations.SignalObject,
        headers=_KEY,
        status=202,
        errors=(400, 404, 408, 413),
    ),
    _operation(
        "POST",
        "/v1/runs/{id}/approve",
        "approve",
        conversations.approve_run,
        "Answer a question of a run",
        takes=conversations.QuestionAnswer,
        gives=conversations.SignalObject,
        headers=_KEY,
        errors=(400, 404, 408, 413),
    ),
    _operation(
        "GET",
        "/v1/sessions",
        "sessions",
        conversations.list_sessions,
        "List conversations, the latest first",
        gives=conversations.SessionList,
        queries=_LIMIT | {"after": "The last_id of the page before."},
        errors=(400, 404),
    ),
    _operation(
        "GET",
        "/v1/sessions/search",
        "sessions",
        conversations.search_sessions,
        "Search in all messages",
        gives=conversations.SearchResult,
        queries=_LIMIT | {"q": "Words that a message must contain."},
        errors=(400,),
    ),
    _operation(
        "GET",
        "/v1/sessions/{id}",
        "sessions",
        conversations.get_session,
        "Describe a conversation",
        gives=conversations.SessionObject,
        errors=(404,),
    ),
    _operation(
        "PATCH",
        "/v1/sessions/{id}",
        "sessions",
        conversations.rename_session,
        "Rename a conversation",
        takes=conversations.Renaming,
        gives=conversations.SessionObject,
        errors=(400, 404, 408, 409, 413),
    ),
    _operation(
        "DELETE",
        "/v1/sessions/{id}",
        "sessions",
        conversations.delete_session,
        "Delete a conversation for good",
        gives=conversations.DeletedSession,
        errors=(404, 409),
    ),
    _operation(
        "GET",
        "/v1/sessions/{id}/entries",
        "sessions",
        conversations.list_entries,
        "Read a conversation, its end first",
        gives=conversations.EntryList,
        queries=_LIMIT | {"before": "The first_seq of the page after it."},
        errors=(400, 404),
    ),
    _operation(
        "POST",
        "/v1/sessions/{id}/fork",
        "sessions",
        conversations.fork_session,
        "Copy a conversation, to go on with the copy",
        takes=conversations.Forking,
        gives=conversations.SessionObject,
        status=201,
        errors=(400, 404, 408, 409, 413),
    ),
    _operation(
        "GET",
        "/v1/sessions/{id}/events",
        "runs",
        conversations.watch_session,
        "Watch a conversation",
        queries={"after": "Only what is after this position in the journal."},
        headers=_LAST,
        errors=(400, 404),
        is_stream=True,
    ),
    _operation(
        "POST",
        "/v1/sessions/{id}/stop",
        "runs",
        conversations.stop_session,
        "Stop what runs in a conversation",
        gives=conversations.SignalObject,
        errors=(400, 404),
    ),
    _operation(
        "POST",
        "/v1/sessions/{id}/steer",
        "runs",
        conversations.steer_session,
        "Give the model a note, in whatever runs there",
        takes=conversations.Steering,
        gives=conversations.SignalObject,
        headers=_KEY,
        status=202,
        errors=(400, 404, 408, 413),
    ),
    _operation(
        "POST",
        "/v1/sessions/{id}/approve",
        "approve",
        conversations.approve_session,
        "Answer a question of what runs there",
        takes=conversations.QuestionAnswer,
        gives=conversations.SignalObject,
        headers=_KEY,
        errors=(400, 404, 408, 413),
    ),
    _operation(
        "GET",
        "/v1/files/{id}",
        "sessions",
        conversations.get_file,
        "Fetch a file that the agent handed over",
        description="By the link in its answer, which needs no token.",
        queries={
            "path": "As in the link.",
            "expires": "As in the link.",
            "signature": "As in the link.",
        },
        errors=(404,),
        is_signed=True,
    ),
    _operation("GET", "/health", "metrics", health, "Whether all is well", gives=HealthReport, errors=(503,)),
    _operation(
        "GET", "/ready", "metrics", ready, "Whether new messages are answered", gives=HealthReport, errors=(503,)
    ),
    _operation("GET", "/metrics", "metrics", metrics, "Counters in the format of Prometheus"),
    _operation("GET", "/openapi.json", "chat", openapi, "This document"),
)

_ALWAYS = (401, 403, 429, 500, 503)
_MEANINGS = {
    400: "A part of the request is wrong: `param` names it.",
    401: "There is no token, or it is not valid.",
    403: "The token lacks the scope, or Host or Origin are not allowed.",
    404: "There is no such thing, or it is somebody else's.",
    408: "The request did not arrive in time.",
    409: "The conversation is busy, or the title is taken.",
    413: "Too large.",
    422: "The Idempotency-Key was used for another request.",
    429: "Too many requests, or a cap is reached: `code` names it.",
    500: "Something went wrong here.",
    502: "The model gave no answer.",
    503: "Not now; try again later.",
}


@lru_cache(maxsize=1)
def encode_document() -> bytes:
    return encode(document())


def document() -> Mapping[str, Any]:
    """The OpenAPI document."""
    types = {one for operation in OPERATIONS for one in (operation.takes, operation.gives) if one is not None}
    ordered = sorted({*types, ErrorBody}, key=lambda one: one.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    by_type: dict[Any, Any] = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _describe(one, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Talaria", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(one: Operation, schemas: Mapping[Any, Any]) -> Mapping[str, Any]:
    def parameter(place: str, name: str, said: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        is_required = place == "path" or name == "q"
        return {"name": name, "in": place, "required": is_required, "description": said, "schema": schema}

    names = [part.strip("{}") for part in one.path.split("/") if part.startswith("{")]
    parameters = [parameter("path", name, "", {"type": "string"}) for name in names]
    parameters += [parameter("query", name, said, _query_type(one.path, name)) for name, said in one.queries.items()]
    parameters += [parameter("header", name, said, {"type": "string"}) for name, said in one.headers.items()]
    content: dict[str, Any] = {}
    if one.gives is not None:
        content[JSON] = {"schema": schemas[one.gives]}
    if one.is_stream:
        content["text/event-stream"] = {"schema": _EVENT}
    if not content:
        media = {"/metrics": "text/plain", "/openapi.json": JSON}.get(one.path, "*/*")
        content[media] = {"schema": {} if media == JSON else {"type": "string"}}
    error = {"application/json": {"schema": schemas[ErrorBody]}}
    answers: dict[str, Any] = {str(one.status): {"description": "Done.", "content": content}}
    if one.status == 202:
        answers["200"] = {"description": "It came too late.", "content": content}
    for status in sorted({*one.errors, *_ALWAYS}):
        own = content if status == 503 and one.gives is HealthReport else error
        answers[str(status)] = {"description": _MEANINGS[status], "content": own}
    described: dict[str, Any] = {
        "operationId": getattr(one.run, "__name__", ""),
        "summary": one.summary,
        "description": f"{one.description} Needs the scope `{one.scope}`.".strip(),
        "parameters": parameters,
        "responses": answers,
    }
    if one.takes is not None:
        is_required = one.path.rpartition("/")[2] != "fork"
        described["requestBody"] = {"required": is_required, "content": {JSON: {"schema": schemas[one.takes]}}}
    return described


_EVENT: Mapping[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}


def _query_type(path: str, name: str) -> Mapping[str, Any]:
    return _QUERY_TYPES.get(f"{path} {name}") or _QUERY_TYPES.get(name) or {"type": "string"}


_QUERY_TYPES: Mapping[str, Mapping[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": conversations.MAX_PAGE},
    "before": {"type": "integer", "minimum": 1, "maximum": 2**53},
    "/v1/sessions/{id}/events after": {"type": "integer", "minimum": 0, "maximum": 2**53},
    "starting_after": {"type": "integer", "minimum": 0, "maximum": 10**15},
    "q": {"type": "string", "minLength": 1, "maxLength": 1000, "pattern": conversations.VISIBLE},
    "stream": {"type": "string", "enum": ["true", "false"]},
}
