"""Random programs of messages, and what they must receive.

A program is a list of calls of all ranks. If they were made one after the other in this order, no call would block: a
blocking call comes after the one that it waits for. So the ranks, which make their calls at the same time, never block
each other for good, if messages are matched as they should be:

- Messages of one sender with one tag arrive in the order in which they were sent.
- A receive from any source takes one of the messages that are there; each tag is received either so, or by sender.
"""
import random
from dataclasses import dataclass, field

import torch

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
          torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn]
LAYOUTS = ["contiguous", "every second", "transposed", "column", "offset"]
# the last two are longer than what a message takes along: it is read where it lies
SIZES = [0, 1, 7, 64, 1000, 3000, 12000, 40000]
WEIGHTS = [1, 6, 6, 6, 4, 2, 1, 1]


@dataclass
class Stream:
    """Messages that match each other: of a group to a rank with a tag, from one sender or any."""
    group: int
    sender: int | None
    receiver: int
    tag: int
    dtype: torch.dtype = torch.float32
    size: int = 0
    sent: int = 0
    received: int = 0
    of_sender: dict = field(default_factory=dict)  # how many each has sent


@dataclass
class Call:
    rank: int
    kind: str  # send, receive, wait
    stream: Stream = None
    peer: int = None  # of a send: to whom; of a receive: None for any
    nth: int = 0  # of a send: which of this sender's; of a receive: which of the stream's
    layout: str = "contiguous"
    blocking: bool = False
    waits_for: "Call" = None


def make_program(seed, groups, calls=40):
    """groups: lists of ranks."""
    dice = random.Random(seed)
    streams, program, open_calls = {}, [], []
    for _ in range(calls):
        if open_calls and dice.random() < 0.15:
            call = dice.choice(open_calls)
            if may_be_awaited(call):
                open_calls.remove(call)
                program.append(Call(call.rank, "wait", waits_for=call))
            continue
        group = dice.randrange(len(groups))
        sender, receiver = dice.sample(groups[group], 2)
        tag = dice.randrange(4)
        stream = stream_of(streams, dice, group, sender, receiver, tag)
        add_call(program, open_calls, dice, stream, sender, dice.random() < 0.5)
    for stream in streams.values():  # what is missing: messages, or receives
        senders = [r for r in groups[stream.group] if r != stream.receiver]
        while stream.sent != stream.received:
            sender = dice.choice(senders) if stream.sender is None else stream.sender
            add_call(program, open_calls, dice, stream, sender, stream.sent < stream.received)
    return program


def stream_of(streams, dice, group, sender, receiver, tag):
    """Tag 0 is received from any source."""
    if tag == 0:
        sender = None
    key = group, sender, receiver, tag
    if key not in streams:
        streams[key] = Stream(*key, dice.choice(DTYPES), dice.choices(SIZES, WEIGHTS)[0])
    return streams[key]


def add_call(program, open_calls, dice, stream, sender, sends):
    layout, wants = dice.choice(LAYOUTS), dice.random() < 0.4
    if sends:
        # another message may take the receive that is there, if it may be from anybody
        blocking = wants and stream.sender is not None and stream.sent < stream.received
        nth = stream.of_sender.get(sender, 0)
        call = Call(sender, "send", stream, stream.receiver, nth, layout, blocking)
        stream.of_sender[sender] = nth + 1
        stream.sent += 1
    else:
        blocking = wants and stream.received < stream.sent
        call = Call(stream.receiver, "receive", stream, stream.sender, stream.received, layout, blocking)
        stream.received += 1
    program.append(call)
    if not blocking:
        open_calls.append(call)


def may_be_awaited(call):
    """Whether its counterpart has been started."""
    if call.kind == "receive":
        return call.nth < call.stream.sent
    return call.stream.sender is not None and call.nth < call.stream.received


def message(stream, sender, nth):
    """The elements that a sender's n-th message of a stream has."""
    start = 31 * stream.tag + 7 * sender + 13 * stream.receiver + 57 * nth + 101 * stream.group
    values = torch.arange(start, start + stream.size)
    if stream.dtype == torch.bool:
        return (values * values // 7) % 2 == 1
    if stream.dtype.is_complex:
        return torch.complex((values % 251).float(), -(values % 13).float())
    return (values % 241 % 120).to(stream.dtype)


def laid_out(layout, elements):
    """A tensor with these elements, and the whole of its memory."""
    n = elements.numel()
    if layout == "contiguous":
        memory = blank(n, elements.dtype)
        tensor = memory
    elif layout == "offset":
        memory = blank(n + 5, elements.dtype)
        tensor = memory[3:3 + n]
    elif layout == "every second":
        memory = blank(2 * n, elements.dtype)
        tensor = memory[::2]
    elif layout == "column":
        memory = blank(3 * n, elements.dtype).view(n, 3)
        tensor = memory[:, 1]
    else:
        rows = 4 if n % 4 == 0 else 1
        memory = blank(n, elements.dtype).view(n // rows, rows)
        tensor = memory.t()
    tensor.copy_(elements.view(tensor.shape))
    return tensor, memory


def blank(n, dtype):
    return torch.ones(n).to(dtype)


def same_bits(a, b):
    return torch.equal(bytes_of(a), bytes_of(b))


def bytes_of(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
