// Random operations of one rank, each compared with the oracle.
#include "tests/soak/era.h"

#include <dirent.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/comm/operation/operation.h>
#include <stormo/schedule/builders.h>

#include "tests/soak/operation.h"

namespace stormo::soak {
namespace {

using namespace std::chrono_literals;
using comm::Communicator;
using comm::OperationKind;

constexpr std::size_t kMaxPending = 5;

/// Memory for one operation, in the Arena or not, beginning anywhere.
class Elements {
 public:
  Elements(Communicator& c, DType dtype, const std::vector<double>& values, std::uint64_t random)
      : arena_(random % 2 == 0 ? &c.arena() : nullptr), dtype_(dtype), count_(values.size()) {
    const std::size_t skipped = random / 2 % 5 * size_of(dtype);
    const std::size_t bytes = values.size() * size_of(dtype) + skipped;
    if (arena_ == nullptr) private_.resize(bytes);
    base_ = arena_ ? static_cast<std::byte*>(arena_->allocate(bytes)) : private_.data();
    data_ = base_ + skipped;
    const auto encoded = encode(dtype, values);
    std::copy(encoded.begin(), encoded.end(), data_);
  }
  ~Elements() {
    if (arena_ != nullptr) arena_->deallocate(base_);
  }
  Elements(const Elements&) = delete;
  comm::Buffer buffer() const { return {data_, static_cast<std::int64_t>(count_), dtype_}; }
  std::vector<double> values() const { return decode(dtype_, data_, count_); }

 private:
  transport::Arena* arena_;
  DType dtype_;
  std::size_t count_;
  std::vector<std::byte> private_;
  std::byte* base_;
  std::byte* data_;
};

/// One operation of one rank from its call to the comparison.
class Call {
 public:
  Call(Communicator& c, const Operation& o, Rng& rng)
      : o_(o),
        me_(c.rank()),
        want_(output(o, me_)),
        in_(c, o.dtype, input(o, me_), rng.next_u64()),
        out_(c, o.dtype, std::vector<double>(comm::in_place(o.kind) ? 0 : want_.size(), 1),
             rng.next_u64()) {
    describe();
    if (o.asynchronous) {
      work_ = c.submit(request_);
    } else {
      work_ = comm::Work::completed(c.run(request_, Deadline::after(60s)));
    }
  }

  /// What is wrong; empty: nothing.
  std::string finish() {
    const Status outcome = work_.wait(Deadline::after(60s));
    if (!outcome.ok()) return outcome.to_string();
    const bool sender = o_.kind == OperationKind::kSend && me_ == o_.root;
    if (want_.empty() || sender) return "";
    const auto got = (comm::in_place(o_.kind) ? in_ : out_).values();
    return agree(o_, got, want_) ? "" : "the outcome differs from the oracle's";
  }

 private:
  void describe() {
    request_.kind = o_.kind;
    request_.reduction = o_.op;
    request_.root = o_.root;
    request_.weight = weight(o_, me_);
    request_.algorithm = o_.algorithm;
    request_.pieces = o_.pieces;
    if (o_.kind == OperationKind::kSend) {
      request_.tag = 9;
      request_.root = me_ == o_.root ? o_.peer : o_.root;
      if (me_ != o_.root) request_.kind = OperationKind::kReceive;
    }
    if (o_.kind == OperationKind::kBarrier) return;
    cut_buffers();
    request_.in = ins_;
    request_.out = comm::in_place(o_.kind) ? request_.in : std::span<const comm::Buffer>(outs_);
    if (o_.equal_parts || comm::in_place(o_.kind)) return;
    for (std::size_t r = 0; r < o_.lengths.size(); ++r) {
      const bool pairs = o_.kind == OperationKind::kAllToAll;
      const auto me = static_cast<std::size_t>(me_);
      counts_.push_back(pairs ? o_.lengths[me][r] : o_.lengths[r][0]);
      if (pairs) out_counts_.push_back(o_.lengths[r][me]);
    }
    request_.counts = counts_;
    request_.out_counts = out_counts_;
  }

  void cut_buffers() {
    outs_ = {out_.buffer()};
    comm::Buffer rest = in_.buffer();
    const std::int64_t each = rest.count / o_.num_buffers;
    for (int i = 1; i < o_.num_buffers; ++i) {
      comm::Buffer head = rest;
      head.count = each;
      ins_.push_back(head);
      rest.data = static_cast<std::byte*>(rest.data) + head.bytes();
      rest.count -= each;
    }
    ins_.push_back(rest);
  }

  const Operation o_;
  const Rank me_;
  const std::vector<double> want_;
  Elements in_;
  Elements out_;
  std::vector<comm::Buffer> ins_, outs_;
  std::vector<std::int64_t> counts_, out_counts_;
  comm::Request request_;
  comm::Work work_;
};

/// The text of a failure, for all to see; ends the group.
std::string failed(Communicator& world, const std::string& wrong, const std::string& where) {
  world.fail({Code::kException, "the soak ends here"});
  return where + "\nrank " + std::to_string(world.rank()) + " of the world: " + wrong;
}

}  // namespace

int open_descriptors() {
  int n = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (folder != nullptr && ::readdir(folder) != nullptr) ++n;
  if (folder != nullptr) ::closedir(folder);
  return n;
}

std::vector<transport::Rendezvous> places(const std::vector<int>& ranks_per_host,
                                          const transport::StoreAddress& store,
                                          const transport::Secret& secret) {
  std::vector<transport::Rendezvous> all;
  for (std::size_t h = 0; h < ranks_per_host.size(); ++h) {
    for (int l = 0; l < ranks_per_host[h]; ++l) {
      transport::Rendezvous r;
      r.rank = static_cast<Rank>(all.size());
      r.local_rank = l;
      r.local_size = ranks_per_host[h];
      r.cross_rank = static_cast<int>(h);
      r.cross_size = static_cast<int>(ranks_per_host.size());
      r.host = "host" + std::to_string(h);
      r.store = store;
      r.secret = secret;
      r.interface = "lo";
      r.heartbeat_timeout = 0s;  // a paused machine is no failure
      all.push_back(r);
    }
  }
  for (transport::Rendezvous& r : all) r.size = static_cast<int>(all.size());
  return all;
}

std::string run_greatest(Communicator& world, std::uint64_t seed, std::int64_t max_count) {
  Rng own(seed, "soak greatest", static_cast<std::uint64_t>(world.rank()));
  for (const schedule::Builder& builder : schedule::builders()) {
    const auto o = greatest_operation(builder, world.ranks_per_host(), max_count);
    if (!o) continue;
    const std::string wrong = Call(world, *o, own).finish();
    if (!wrong.empty()) return failed(world, wrong, o->text());
  }
  return "";
}

std::string run_era(Communicator& world, std::uint64_t seed, std::uint64_t era,
                    std::int64_t max_count) {
  Rng shared(seed, "soak era", era);  // equal on all ranks
  Rng own(seed, "soak rank", era * 64 + static_cast<std::uint64_t>(world.rank()));
  std::vector<Rank> members;
  for (Rank r = 0; r < world.size(); ++r) {
    if (shared.below(3) > 0) members.push_back(r);
  }
  if (members.empty()) members.push_back(0);
  auto made = world.subgroup(members, Deadline::after(60s));
  if (!made.ok()) return failed(world, made.status().to_string(), "a subgroup");
  const std::unique_ptr<Communicator> some = std::move(*made);
  std::vector<std::pair<std::string, std::unique_ptr<Call>>> pending;
  const auto finish_all = [&]() -> std::string {
    for (auto& [text, call] : pending) {
      const std::string wrong = call->finish();
      if (!wrong.empty()) return failed(world, wrong, text);
    }
    pending.clear();
    return "";
  };
  for (int i = 0; i < kOperationsPerEra; ++i) {
    const bool in_subgroup = shared.below(3) == 0;
    Rng of_operation(seed, "soak operation", era * 1000 + static_cast<std::uint64_t>(i));
    Communicator* const c = in_subgroup ? some.get() : &world;
    if (c == nullptr) continue;
    const Operation o = random_operation(of_operation, c->ranks_per_host(), max_count);
    const bool takes_part =
        o.kind != OperationKind::kSend || c->rank() == o.root || c->rank() == o.peer;
    if (!takes_part) continue;
    pending.emplace_back(o.text(), std::make_unique<Call>(*c, o, own));
    if (o.asynchronous && pending.size() < kMaxPending) continue;
    if (std::string wrong = finish_all(); !wrong.empty()) return wrong;
  }
  if (std::string wrong = finish_all(); !wrong.empty()) return wrong;
  const Status left = some != nullptr ? some->finalize(Deadline::after(60s)) : Status();
  return left.ok() ? "" : failed(world, left.to_string(), "finalize of a subgroup");
}

}  // namespace stormo::soak
