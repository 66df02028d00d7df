"""An event is the same on both sides of the wire, whoever wrote it: CloudEvents, or a Celery task."""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from amqp.serialization import dumps, loads
from celery import Celery
from celery.worker.request import Request
from hypothesis import given
from hypothesis import strategies as st
from kombu import Exchange, Producer, Queue

from jobs.contrib.event_broker.wire import Malformed, Message, decode, encode, encode_celery, key_of

MESSAGE = Message(
    id="0190b2a4-7f3e-7cc1-8a53-7a2b0f6b1c11",
    source="shop",
    name="shop.order.paid",
    version=3,
    time=datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=2))),
    key="customer-7",
    number=41,
    trace={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"},
    data={"order_id": 3, "note": "ünï\U0001f600", "lines": [{"price": "1.10"}], "none": None},
    again="replay-5",
)
BARE = Message(id="17", source="/sensors", name="heat", data={"celsius": 21})
BINARY = {"cloudEvents:id": "17", "cloudEvents:source": "/sensors", "cloudEvents:type": "heat"}
STRUCTURED = {"specversion": "1.0", "id": "17", "source": "/sensors", "type": "heat", "data": {"celsius": 21}}

#: What celery-amqp-events 0.1.0 published on Celery 5.7.0 and RabbitMQ, as py-amqp received it, for
#: order_paid(3, cents=5, at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)).
RECORDED = {
    "body": '[[3], {"cents": 5, "at": {"__type__": "datetime", "__value__": "2026-01-02T03:04:05+00:00"}}, '
    '{"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',
    "properties": {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "application_headers": {
            "lang": "py",
            "task": "shop.order.paid",
            "id": "782e5b15-6235-40ce-9bcb-93d17cab2276",
            "shadow": None,
            "eta": None,
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": "782e5b15-6235-40ce-9bcb-93d17cab2276",
            "parent_id": None,
            "argsrepr": "(3,)",
            "kwargsrepr": "{'cents': 5, 'at': datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)}",
            "origin": "gen13097@vm",
            "ignore_result": None,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        "delivery_mode": 2,
        "priority": 0,
        "correlation_id": "782e5b15-6235-40ce-9bcb-93d17cab2276",
        "reply_to": "159f47ea-3752-396e-be55-8886612e012f",
    },
}


def body_of(**changes: Any) -> bytes:
    return json.dumps({**STRUCTURED, **changes}).encode()


def through_amqp(properties: dict[str, Any]) -> dict[str, Any]:
    """The properties with headers that were written and read as AMQP's own table."""
    table, _ = loads("F", dumps("F", [properties["headers"]]), 0)
    return {**properties, "headers": table[0]}


@pytest.mark.parametrize("message", [MESSAGE, BARE, replace(BARE, data={}), replace(MESSAGE, number=0)])
@pytest.mark.parametrize("way", [encode, encode_celery])
def test_a_message_comes_back_as_it_was(message, way):
    body, properties = way(message)
    assert decode(body, through_amqp(properties)) == message


NAMES = st.text(min_size=1, max_size=255).filter(lambda text: "\0" not in text)


@given(
    st.builds(
        Message,
        id=NAMES,
        source=NAMES,
        name=NAMES,
        version=st.integers(1, 2**15 - 1),
        time=st.none() | st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC)),
        key=st.none() | NAMES,
        number=st.none() | st.integers(0, 2**62 - 1),
        data=st.dictionaries(NAMES, NAMES | st.integers() | st.none()),
        again=st.none() | NAMES,
    )
)
def test_any_message_comes_back_as_it_was(message):
    body, properties = encode(message)
    assert decode(body, properties) == message


def test_a_message_has_the_names_of_the_binding():
    body, properties = encode(MESSAGE)
    assert json.loads(body) == MESSAGE.data
    assert properties == {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "message_id": MESSAGE.id,
        "timestamp": int(MESSAGE.time.timestamp()),
        "type": "shop.order.paid",
        "headers": {
            "cloudEvents:specversion": "1.0",
            "cloudEvents:id": MESSAGE.id,
            "cloudEvents:source": "shop",
            "cloudEvents:type": "shop.order.paid",
            "cloudEvents:eventversion": "3",
            "cloudEvents:time": "2030-01-02T03:04:05.000678+02:00",
            "cloudEvents:partitionkey": "customer-7",
            "cloudEvents:sequence": "0000000000000000041",
            "cloudEvents:replay": "replay-5",
            "cloudEvents:traceparent": MESSAGE.trace["traceparent"],
            "cloudEvents:tracestate": "a=1",
        },
    }
    attributes = [name.removeprefix("cloudEvents:") for name in properties["headers"]]
    assert all(name.isalnum() and name.islower() for name in attributes)


def test_sequences_are_in_order_as_text():
    sequences = [encode(replace(MESSAGE, number=n))[1]["headers"]["cloudEvents:sequence"] for n in (2, 10, 2**62)]
    assert sequences == sorted(sequences)


@pytest.mark.parametrize("prefix", ["cloudEvents:", "cloudEvents_", "ce-", "ce_", "CLOUDEVENTS:", "Ce-"])
def test_every_library_s_prefix_is_understood(prefix):
    headers = {
        prefix + "ID": "17",
        prefix + "Source": "/sensors",
        prefix + "type": "heat",
        prefix + "specversion": "1.0",
    }
    assert decode(b'{"celsius":21}', {"content_type": "application/json", "headers": headers}) == BARE


@pytest.mark.parametrize("form", ["application/json; charset=utf-8", "application/vnd.heat+json", "TEXT/JSON", None])
def test_every_kind_of_json_is_understood(form):
    assert decode(b'{"celsius":21}', {"content_type": form, "headers": BINARY}) == BARE


def test_attributes_may_have_types_of_amqp():
    headers = {
        **BINARY,
        "cloudEvents:id": 17,
        "cloudEvents:source": b"/sensors",
        "cloudEvents:time": datetime(2030, 1, 2),
        "cloudEvents:eventversion": 2,
        "cloudEvents:partitionkey": None,
    }
    expected = replace(BARE, version=2, time=datetime(2030, 1, 2, tzinfo=UTC))
    assert decode(b'{"celsius":21}', {"headers": headers}) == expected


@pytest.mark.parametrize(
    "time", ["2030-01-02T00:00:00Z", "2030-01-02t00:00:00.000000001z", "2030-01-02T02:00:00+02:00"]
)
def test_moments_of_other_languages_are_understood(time):
    message = decode(b"", {"headers": {**BINARY, "cloudEvents:time": time}})
    assert message.time == datetime(2030, 1, 2, tzinfo=UTC)


def test_the_time_may_stand_in_amqp_alone():
    assert decode(b"", {"headers": BINARY, "timestamp": 1893542400}).time == datetime(2030, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("value", ["later", "9" * 19, "9" * 5000])
@pytest.mark.parametrize("header", ["cloudEvents:time", "cloudEvents:sequence"])
def test_what_is_not_needed_may_be_nonsense(header, value):
    message = decode(b"{}", {"headers": {**BINARY, header: value}})
    assert (message.time, message.number) == (None, None)


def test_an_event_without_data_is_one_without_fields():
    assert decode(b"", {"headers": BINARY}).data == {}
    without = json.dumps({name: value for name, value in STRUCTURED.items() if name != "data"})
    assert decode(without, {"content_type": "application/cloudevents+json"}).data == {}


def test_structured_mode_is_understood():
    for form in ("application/cloudevents+json", "application/cloudevents+json; charset=UTF-8"):
        assert decode(body_of(), {"content_type": form}) == BARE
    packed = base64.b64encode(b'{"celsius":21}').decode()
    event = {name: value for name, value in STRUCTURED.items() if name != "data"}
    body = json.dumps({**event, "data_base64": packed, "sequence": "5", "partitionkey": "k", "EventVersion": 2})
    expected = replace(BARE, number=5, key="k", version=2)
    assert decode(body.encode(), {"content_type": "application/cloudevents+json"}) == expected


JSON, WHOLE = "application/json", "application/cloudevents+json"


@pytest.mark.parametrize(
    ("body", "form", "headers", "message"),
    [
        (b"{", JSON, BINARY, "its body is not JSON"),
        (b"\xff\xfe\xfa", JSON, BINARY, "its body is not JSON"),
        (b"[" * 100_000, JSON, BINARY, "its body is not JSON"),
        (b'{"a": NaN}', JSON, BINARY, "data.*is nan, which JSON does not know"),
        (b'{"a": 1e999}', JSON, BINARY, "data.*is inf"),
        (b'{"a": "\\u0000"}', JSON, BINARY, "data.* contains a NUL character"),
        (b'{"a": "\\ud800"}', JSON, BINARY, "data.* contains a lone surrogate"),
        (b"[1]", JSON, BINARY, "its data is a list and no JSON object: send the fields by their names"),
        (b"null", JSON, BINARY, "its data is a NoneType and no JSON object"),
        (b"<a/>", "application/xml", BINARY, "its data is of application/xml: send application/json"),
        (b"{}", JSON, {}, "it has no id and no source and no type: send a CloudEvent"),
        (b"{}", JSON, {**BINARY, "cloudEvents:source": ""}, "it has no source: send a CloudEvent"),
        (b"{}", JSON, {**BINARY, "cloudEvents:id": "a\0"}, "id contains a NUL character"),
        (b"{}", JSON, {**BINARY, "cloudEvents:id": b"\xff"}, "can't decode byte"),
        (b"{}", JSON, {**BINARY, "cloudEvents:specversion": "0.3"}, "it is of CloudEvents 0.3: send 1.0"),
        (b"{}", JSON, {**BINARY, "cloudEvents:eventversion": "v2"}, "its eventversion is 'v2': send a whole number"),
        (b"{}", JSON, {**BINARY, "cloudEvents:eventversion": "99999"}, "send a whole number below 32768"),
        (b"{}", JSON, {**BINARY, "cloudEvents:eventversion": "9" * 5000}, "send a whole number below 32768"),
        (
            b"{}",
            JSON,
            {**BINARY, "cloudEvents:source": "s" * 256},
            "its source has 256 characters: send 255",
        ),
        (b"[]", "application/cloudevents-batch+json", {}, "it is of .*batch.*, one event in a message"),
        (b"", "application/cloudevents+avro", {}, r"it is of application/cloudevents\+avro: send"),
        (b"[]", WHOLE, {}, "the event is a list and no JSON object"),
        (body_of(data="x"), WHOLE, {}, "its data is a str and no JSON object"),
        (body_of(data_base64="!"), WHOLE, {}, "its data_base64 is not JSON"),
        (body_of(data_base64=1), WHOLE, {}, "its data_base64 is not JSON"),
        (b"{}", JSON, {"task": "a", "id": "b"}, "it is no task of Celery's protocol 2"),
        (b'[["a\\u0000"], {}, {}]', JSON, {"task": "a", "id": "b"}, "args.* contains a NUL character"),
        (b'[[{"__type__": "base64", "__value__": "YQ=="}], {}, {}]', JSON, {"task": "a", "id": "b"}, "is bytes"),
        (b"[1, 2, 3]", JSON, {"task": "a", "id": "b"}, "its data is a int and no JSON object"),
        (
            b"gASV",
            "application/x-python-serialize",
            {"task": "a", "id": "b"},
            "its data is of application/x-python-ser",
        ),
    ],
)
def test_what_is_no_event_is_told_in_plain_words(body, form, headers, message):
    with pytest.raises(Malformed, match=message):
        decode(body, {"content_type": form, "headers": headers})


@given(st.binary(max_size=50), st.dictionaries(st.sampled_from([*BINARY, "task", "id", "time"]), st.none() | st.text()))
def test_nothing_that_arrives_raises_anything_else(body, headers):
    for form in (JSON, WHOLE):
        try:
            decode(body, {"content_type": form, "headers": headers})
        except Malformed:
            continue


def test_the_key_is_the_id_if_it_is_a_uuid_and_unique_for_the_source_if_not():
    assert key_of(MESSAGE) == uuid.UUID(MESSAGE.id)
    assert key_of(BARE) == key_of(replace(BARE, data={}))
    assert len({key_of(BARE), key_of(replace(BARE, source="/other")), key_of(replace(BARE, id="18"))}) == 3
    assert key_of(replace(BARE, source="a", id="bc")) != key_of(replace(BARE, source="ab", id="c"))


def test_a_message_of_celery_amqp_events_is_understood():
    message = decode(RECORDED["body"], RECORDED["properties"])
    assert message == Message(
        id="782e5b15-6235-40ce-9bcb-93d17cab2276",
        source="celery:vm",
        name="shop.order.paid",
        args=[3],
        data={"cents": 5, "at": "2026-01-02T03:04:05+00:00"},
    )


def test_a_trace_goes_on_from_a_sender_s_own_headers():
    headers = {**RECORDED["properties"]["application_headers"], "traceparent": MESSAGE.trace["traceparent"]}
    message = decode(RECORDED["body"], {"content_type": "application/json", "headers": headers})
    assert message.trace == {"traceparent": MESSAGE.trace["traceparent"]}


def test_our_celery_message_has_the_form_of_a_recorded_one():
    body, properties = encode_celery(MESSAGE)
    recorded = RECORDED["properties"]["application_headers"]
    ours = {name: value for name, value in properties["headers"].items() if ":" not in name}
    assert ours.keys() == recorded.keys()
    same = ("lang", "task", "retries", "timelimit", "eta", "expires", "group", "parent_id", "stamps")
    assert [ours[name] for name in same] == [recorded[name] for name in same]
    assert ours["id"] == ours["root_id"] == properties["correlation_id"] == MESSAGE.id
    assert json.loads(body) == [[], MESSAGE.data, json.loads(RECORDED["body"])[2]]


def test_a_stock_service_runs_our_celery_message():
    app = Celery("billing", set_as_current=False, broker="memory://")

    @app.task(name=MESSAGE.name)
    def award(**data):
        return data

    body, properties = encode_celery(MESSAGE)
    with app.connection_for_write() as connection:
        queue = Queue(f"billing.{MESSAGE.name}", Exchange("events", "topic"), MESSAGE.name)(connection.default_channel)
        queue.declare()
        Producer(connection, queue.exchange).publish(body, routing_key=MESSAGE.name, **properties)
        message = queue.get()
    assert Request(message, app=app, on_ack=message.ack_log_error).execute() == MESSAGE.data
    assert decode(message.body, {**message.properties, "headers": message.headers}) == MESSAGE
