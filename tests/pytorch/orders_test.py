"""Orders in which a backend with one queue, or with buffers that run full, would block or mix up values."""
import contextlib
import itertools
import random
import unittest
import unittest.mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import stormo_torch
from message_programs import Stream, laid_out, make_program, message, same_bits
from forked_ranks import JoinedRanks


def sum_in_groups(seed, lists, rounds):
    """Each rank starts the sums of its groups in an order of its own, and waits in another. lists: by group its ranks.
    seed None: neighbours in opposite orders."""
    rank = dist.get_rank()
    groups = [dist.new_group(ranks) for ranks in lists]
    mine = [g for g, ranks in enumerate(lists) if rank in ranks]
    dice = random.Random(f"{seed} {rank}")
    for n in range(rounds):
        if seed is not None:
            dice.shuffle(mine)
        elif n == 0 and rank % 2 == 0:
            mine.reverse()
        size = [1, 300, 5000, 100_000][n % 4]
        tensors = {g: torch.full((size,), float(1000 * g + 10 * n + rank)) for g in mine}
        works = [dist.all_reduce(tensors[g], group=groups[g], async_op=True) for g in mine]
        for work in reversed(works):
            work.wait()
        for g in mine:
            expected = sum(1000 * g + 10 * n + r for r in lists[g])
            assert tensors[g].eq(expected).all(), f"round {n}, group {lists[g]}: {tensors[g]}, not {expected}"


def exchange_with_all(in_arena, rounds):
    """Every rank sends 16 MiB to all before it receives anything."""
    rank, size, elements = dist.get_rank(), dist.get_world_size(), 4 << 20
    peers = [r for r in range(size) if r != rank]

    def message_of(sender, receiver, n):
        return torch.arange(elements, dtype=torch.int32) + (1000 * n + 100 * sender + 10 * receiver)

    with stormo_torch.arena() if in_arena else contextlib.nullcontext():
        inputs = {r: torch.empty(elements, dtype=torch.int32) for r in peers}
        outputs = {r: torch.empty(elements, dtype=torch.int32) for r in peers}
    assert stormo_torch.in_arena(inputs[peers[0]]) == in_arena
    for n in range(rounds):
        for r in peers:
            inputs[r].copy_(message_of(rank, r, n))
            outputs[r].fill_(-1)
        to = peers if rank % 2 else peers[::-1]
        ways = [dist.P2POp(dist.isend, inputs[r], r) for r in to]
        ways += [dist.P2POp(dist.irecv, outputs[r], r) for r in reversed(to)]
        works = dist.batch_isend_irecv(ways)
        for work in works if rank % 2 else reversed(works):
            work.wait()
        for r in peers:
            assert torch.equal(outputs[r], message_of(r, rank, n)), f"round {n}: from rank {r}"


class Programs:
    """Runs programs on a rank of four, of whom three have a group besides."""

    lists = [[0, 1, 2, 3], [0, 2, 3]]

    def __init__(self):
        self.rank = dist.get_rank()
        self.groups = [dist.new_group(ranks) for ranks in self.lists]

    def run(self, seed, program):
        works, results = {}, []
        for call in program:
            if call.rank != self.rank:
                continue
            if call.kind == "wait":
                works[id(call.waits_for)].wait()
            elif call.kind == "send":
                works[id(call)] = self.send(call)
            else:
                works[id(call)], result = self.receive(call)
                results.append((call, *result))
        rest = [work for work in works.values() if work is not None]
        random.Random(100 * seed + self.rank).shuffle(rest)
        for work in rest:
            work.wait()
        self.check(results, works)

    def send(self, call):
        tensor, _ = laid_out(call.layout, message(call.stream, self.rank, call.nth))
        start = dist.send if call.blocking else dist.isend
        return start(tensor, call.peer, group=self.groups[call.stream.group], tag=call.stream.tag)

    def receive(self, call):
        """The work if it is not blocking, and what is to be checked."""
        nothing = torch.zeros(call.stream.size).to(call.stream.dtype)
        tensor, memory = laid_out(call.layout, nothing)
        group = self.groups[call.stream.group]
        if call.blocking:
            source = dist.recv(tensor, call.peer, group=group, tag=call.stream.tag)
            return None, (tensor, memory, source)
        return dist.irecv(tensor, call.peer, group=group, tag=call.stream.tag), (tensor, memory, None)

    def check(self, results, works):
        heard = {}  # of each stream and sender
        for call, tensor, memory, source in results:
            if source is None:
                source = self.lists[call.stream.group][works[id(call)]._source_rank()]
            what = f"{call}: from rank {source}"
            assert call.peer in (None, source), what
            nth = heard.get((id(call.stream), source), 0)
            heard[id(call.stream), source] = nth + 1
            expected, expected_memory = laid_out(call.layout, message(call.stream, source, nth))
            assert same_bits(tensor, expected), f"{what}, its message {nth}: {tensor}, not {expected}"
            assert same_bits(memory, expected_memory), f"{what}: memory beside the tensor was written"
        for stream in {id(call.stream): call.stream for call, *_ in results}.values():
            got = {sender: n for (which, sender), n in heard.items() if which == id(stream)}
            assert got == stream.of_sender, f"{stream}: received {got}"


def run_programs(seeds):
    programs = Programs()
    for seed in seeds:
        try:
            programs.run(seed, make_program(seed, Programs.lists))
            dist.barrier()
        except Exception as error:
            raise AssertionError(f"the program of seed {seed}") from error


def send_many_with_one_tag(from_any):
    """Half of them is sent before a receive is there, half after. Long ones are read where they lie, short ones take
    along what they say: none may overtake another."""
    rank, size, count = dist.get_rank(), dist.get_world_size(), 200
    sizes = [6000] if from_any else [3, 50_000, 1, 0, 9000, 20]

    def elements(sender, nth):
        return message(Stream(0, sender, 0, 5, size=sizes[nth % len(sizes)]), sender, nth)

    def send(begin, end):
        return [dist.isend(elements(rank, n), 0, tag=5) for n in range(begin, end)] if rank != 0 else []

    works = send(0, count // 2)
    dist.barrier()
    receives = []
    for n, sender in itertools.product(range(count), range(1, size)):
        if rank == 0:
            tensor = torch.zeros_like(elements(sender, n))
            receives.append((tensor, dist.irecv(tensor, None if from_any else sender, tag=5)))
    dist.barrier()
    for work in works + send(count // 2, count):
        work.wait()
    heard = {sender: 0 for sender in range(1, size)}
    for tensor, work in receives:
        work.wait()
        sender = work._source_rank()
        nth = heard[sender]
        heard[sender] += 1
        assert same_bits(tensor, elements(sender, nth)), f"message {nth} of rank {sender}: {tensor}"
    assert rank != 0 or set(heard.values()) == {count}, heard


def create_groups(seed, count, most):
    """The members of each group create it, and no others. When more than `most` live, one of them is destroyed.

    torch names such a group after its members and the number of groups that this process has. So ranks with different
    numbers could not meet: here the test gives the names."""
    dice = random.Random(seed)
    rank, world = dist.get_rank(), range(dist.get_world_size())
    living = []
    for n in range(count):
        members = sorted(dice.sample(world, dice.randint(1, len(world))))
        group = None
        if rank in members:
            with unittest.mock.patch.object(distributed_c10d, "_process_group_name", lambda *_, **__: f"group {n}"):
                group = dist.new_group(members, use_local_synchronization=True)
        living.append((n, members, group))
        check_sum(*start_sum(*living[-1]))
        if len(living) > most:
            _, _, group = living.pop(dice.randrange(len(living)))
            if group is not None:
                dist.destroy_process_group(group)
    sum_in_any_order(living)


def divide_ranks(seed, rounds):
    """Each round divides the ranks into groups, so that all have equally many: torch's own names need it."""
    dice = random.Random(seed)
    rank, size = dist.get_rank(), dist.get_world_size()
    living = []
    for n in range(rounds):
        places = [dice.randrange(size) for _ in range(size)]
        members = [r for r in range(size) if places[r] == places[rank]]
        living.append((n, members, dist.new_group(members, use_local_synchronization=True)))
        check_sum(*start_sum(*living[-1]))
    sum_in_any_order(living)


def sum_in_any_order(groups):
    """Each rank starts them in an order of its own."""
    random.Random(dist.get_rank()).shuffle(groups)
    for sum_in_group in [start_sum(*one) for one in groups]:
        check_sum(*sum_in_group)


def start_sum(n, members, group):
    x = torch.full((1000,), float(10 * n + dist.get_rank()))
    work = None if group is None else dist.all_reduce(x, group=group, async_op=True)
    return x, work, members, sum(10 * n + r for r in members)


def check_sum(x, work, members, expected):
    if work is not None:
        work.wait()
        assert x.eq(expected).all(), f"the sum of {members} is {x}, not {expected}"


class OrdersTest(unittest.TestCase):
    def test_two_groups_in_opposite_order(self):
        JoinedRanks(sum_in_groups, 4, None, [[0, 1, 2], [1, 2, 3]], 300).wait()

    def test_four_groups_in_random_order(self):
        JoinedRanks(sum_in_groups, 4, 1, [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]], 150).wait()

    def test_long_messages_to_all_at_once(self):
        for in_arena in [False, True]:
            with self.subTest(in_arena=in_arena):
                JoinedRanks(exchange_with_all, 4, in_arena, 3).wait()

    def test_random_programs_of_messages(self):
        JoinedRanks(run_programs, 4, range(1000)).wait()

    def test_messages_with_one_tag_arrive_in_order(self):
        for from_any in [False, True]:
            with self.subTest(from_any=from_any):
                JoinedRanks(send_many_with_one_tag, 3, from_any).wait()

    def test_groups_by_members_only(self):
        for most in [30, 200]:
            with self.subTest(most=most):
                JoinedRanks(create_groups, 4, 1, 200, most).wait()

    def test_ranks_are_divided_again_and_again(self):
        JoinedRanks(divide_ranks, 4, 2, 200).wait()


if __name__ == "__main__":
    unittest.main()
