#include <stormo/server/message/data_message.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include <stormo/server/message/server_message.h>
#include <stormo/server/shard/shard_memory.h>
#include <stormo/transport/store/wire.h>

namespace stormo::server {
namespace {

using transport::WireReader;

Status malformed(const char* what) {
  return Status(Code::kCorrupt, std::string("server protocol: malformed ") + what);
}

/// Writes fields in the order in which they are given.
class Writer {
 public:
  template <class... T>
  Writer& operator()(const T&... fields) {
    (put(fields), ...);
    return *this;
  }
  std::string take() { return std::move(out_); }

 private:
  void put(std::string_view bytes) { transport::put_bytes(out_, bytes); }
  void put(const std::string& bytes) { put(std::string_view(bytes)); }
  template <class T>
  void put(const T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      transport::put(out_, std::bit_cast<std::uint64_t>(static_cast<double>(value)));
    } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
      transport::put(out_, static_cast<std::uint8_t>(value));
    } else {
      transport::put(out_, value);
    }
  }
  std::string out_;
};

/// Reads what Writer has written. After the first failure all fields stay as they are.
class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  template <class... T>
  Reader& operator()(T&... fields) {
    (get(fields), ...);
    return *this;
  }
  /// An enum or bool up to `last`.
  template <class E>
  Reader& upto(E& value, E last) {
    std::uint8_t number = 0;
    in_.read(number);
    if (number > static_cast<std::uint8_t>(last)) is_good_ = false;
    value = static_cast<E>(number);
    return *this;
  }
  bool good() const { return is_good_ && in_.good(); }
  bool done() const { return is_good_ && in_.done(); }

 private:
  void get(std::string_view& bytes) { in_.read_bytes(kMaxControlBytes, bytes); }
  void get(std::string& bytes) {
    std::string_view view;
    get(view);
    bytes = view;
  }
  void get(double& value) {
    std::uint64_t word = 0;
    in_.read(word);
    value = std::bit_cast<double>(word);
  }
  void get(bool& value) { upto(value, true); }
  template <std::integral T>
  void get(T& value) {
    in_.read(value);
  }
  WireReader in_;
  bool is_good_ = true;
};

static_assert(std::endian::native == std::endian::little, "integers are sent as they are");

std::string_view words_of(const std::vector<RowsHead>& rows) {
  return {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(RowsHead)};
}

}  // namespace

bool is_of_ledger(DataOp op) {
  return (op >= DataOp::kDeal && op <= DataOp::kLeaveLedger) || op == DataOp::kAdvance;
}

bool is_command(DataOp op) { return op == DataOp::kRun || op == DataOp::kAdvance; }

bool is_of_coordinator(DataOp op) {
  return is_command(op) || op == DataOp::kLookAtLedger || op == DataOp::kWait;
}

bool is_about_worker(DataOp op) {
  return op == DataOp::kLose || op == DataOp::kComeBack || op == DataOp::kElect;
}

bool is_harmless(DataOp op) {
  return op == DataOp::kLook || op == DataOp::kSave || op == DataOp::kState ||
         op == DataOp::kTerms || op == DataOp::kLookAtLedger || op == DataOp::kPart;
}

std::string encode(const DataRequest& r) {
  return Writer()(r.op, r.shard, r.id, r.patience_ns, r.count, r.number, r.gradient_scale, r.weight,
                  r.loss_sum, r.portion, r.batch, r.updates, r.given, r.terms.first_step,
                  r.terms.steps, r.terms.first_sample, r.terms.by_speed, r.terms.portions,
                  r.outcome.loss_sum, r.outcome.samples, r.program, words_of(r.rows), r.worker,
                  r.origin, r.result)
      .take();
}

Result<DataRequest> decode_data_request(std::string_view head) {
  Reader in(head);
  DataRequest r;
  std::string_view rows;
  in.upto(r.op, DataOp::kElect)(r.shard, r.id, r.patience_ns, r.count, r.number, r.gradient_scale,
                                r.weight, r.loss_sum, r.portion, r.batch, r.updates, r.given,
                                r.terms.first_step, r.terms.steps, r.terms.first_sample,
                                r.terms.by_speed, r.terms.portions, r.outcome.loss_sum,
                                r.outcome.samples, r.program, rows, r.worker, r.origin, r.result);
  if (!in.done() || r.op < DataOp::kRead || r.patience_ns < -1 || r.portion < -1 ||
      r.portion >= protocol::kMaxPortions)
    return malformed("request");
  const char last = r.op == DataOp::kPush ? kSentBefore : kArrayGiven;
  for (const char given : r.given) {
    if (given < kNotGiven || given > last) return malformed("list of arrays");
  }
  if (rows.size() % sizeof(RowsHead) != 0) return malformed("list of rows");
  r.rows.resize(rows.size() / sizeof(RowsHead));
  if (!rows.empty()) std::memcpy(r.rows.data(), rows.data(), rows.size());
  return r;
}

std::int64_t patience_of(Deadline by) { return by.is_never() ? -1 : by.remaining().count(); }

std::string encode(const DataReply& reply) {
  return Writer()(reply.id, static_cast<std::uint8_t>(reply.code), reply.body).take();
}

Result<DataReply> decode_data_reply(std::string_view head) {
  Reader in(head);
  DataReply reply;
  std::uint8_t code = 0;
  in(reply.id, code, reply.body);
  if (!in.done() || code > static_cast<std::uint8_t>(Code::kException)) {
    return malformed("reply");
  }
  reply.code = static_cast<Code>(code);
  return reply;
}

std::string encode(const ViewHead& view) {
  Writer out;
  out(view.version, view.commit, static_cast<std::uint32_t>(view.updates.size()));
  for (const std::int64_t updates : view.updates) out(updates);
  out(view.has_changes, view.ranges, view.bytes);
  return out.take();
}

Result<ViewHead> decode_view_head(std::string_view bytes) {
  Reader in(bytes);
  ViewHead view;
  std::uint32_t count = 0;
  in(view.version, view.commit, count);
  if (count > bytes.size() / sizeof(std::int64_t)) return malformed("version");
  view.updates.resize(count);
  for (std::int64_t& updates : view.updates) in(updates);
  in(view.has_changes, view.ranges, view.bytes);
  if (!in.done()) return malformed("version");
  return view;
}

std::string encode(const Shard::Pushed& p) {
  return Writer()(p.decision.action, p.decision.staleness, p.decision.gradient_factor,
                  p.decision.rate_factor, p.commit)
      .take();
}

Result<Shard::Pushed> decode_pushed(std::string_view bytes) {
  Reader in(bytes);
  Shard::Pushed p;
  in.upto(p.decision.action, protocol::PushAction::kAddAndUpdate)(
      p.decision.staleness, p.decision.gradient_factor, p.decision.rate_factor, p.commit);
  if (!in.done()) return malformed("answer to a push");
  return p;
}

std::string encode(const Shard::Joined& joined) {
  return Writer()(joined.sequence, joined.commit).take();
}

Result<Shard::Joined> decode_joined(std::string_view bytes) {
  Reader in(bytes);
  Shard::Joined joined;
  in(joined.sequence, joined.commit);
  if (!in.done()) return malformed("answer to a join");
  return joined;
}

std::string encode(const protocol::ShardState& state) {
  Writer out;
  out(state.version, state.pending, state.pending_weight, state.pending_loss);
  for (const std::uint64_t word : state.counted) out(word);
  out(static_cast<std::uint32_t>(state.workers.size()));
  for (const protocol::WorkerState& w : state.workers) {
    out(w.reads, w.pushes, w.version_read, w.dropped, w.version_used, w.active, w.staleness.count,
        w.staleness.sum, w.staleness.max);
    for (const std::uint64_t count : w.staleness.histogram) out(count);
  }
  return out.take();
}

Result<protocol::ShardState> decode_shard_state(std::string_view bytes) {
  Reader in(bytes);
  protocol::ShardState state;
  std::uint32_t workers = 0;
  in(state.version, state.pending, state.pending_weight, state.pending_loss);
  for (std::uint64_t& word : state.counted) in(word);
  in(workers);
  if (workers > ShardMemory::kMaxWorkers) return malformed("state of a shard");
  state.workers.resize(workers);
  for (protocol::WorkerState& w : state.workers) {
    in(w.reads, w.pushes, w.version_read, w.dropped, w.version_used, w.active, w.staleness.count,
       w.staleness.sum, w.staleness.max);
    for (std::uint64_t& count : w.staleness.histogram) in(count);
  }
  if (!in.done()) return malformed("state of a shard");
  return state;
}

std::string encode(const Ledger::Terms& t) {
  return Writer()(t.first_step, t.steps, t.first_sample, t.by_speed, t.portions).take();
}

Result<Ledger::Terms> decode_ledger_terms(std::string_view bytes) {
  Reader in(bytes);
  Ledger::Terms t;
  in(t.first_step, t.steps, t.first_sample, t.by_speed, t.portions);
  if (!in.done()) return malformed("terms of the ledger");
  return t;
}

std::string encode(const Ledger::Turn& t) {
  const StepTask task = t.task.value_or(StepTask{});
  Writer out;
  out(t.task.has_value(), static_cast<std::int32_t>(task.part), task.step, t.ends_share, t.all_done,
      static_cast<std::int32_t>(t.stop_signal), t.totals.loss_sum, t.totals.samples, t.position,
      static_cast<std::int32_t>(t.others), t.again.count(), t.is_computed,
      static_cast<std::uint32_t>(t.losses.size()));
  for (const Ledger::Losses& l : t.losses) out(l.worker, l.lost, l.came_back);
  return out.take();
}

Result<Ledger::Turn> decode_turn(std::string_view bytes) {
  Reader in(bytes);
  Ledger::Turn t;
  bool has_task = false;
  StepTask task;
  std::int64_t again = 0;
  std::uint32_t losses = 0;
  in(has_task, task.part, task.step, t.ends_share, t.all_done, t.stop_signal, t.totals.loss_sum,
     t.totals.samples, t.position, t.others, again, t.is_computed, losses);
  if (losses > ShardMemory::kMaxWorkers) return malformed("turn");
  t.losses.resize(losses);
  for (Ledger::Losses& l : t.losses) in(l.worker, l.lost, l.came_back);
  if (!in.done()) return malformed("turn");
  if (has_task) t.task = task;
  t.again = Duration(again);
  return t;
}

std::string encode(const optim::VectorProgram& program) {
  Writer out;
  out(static_cast<std::uint32_t>(program.size()));
  for (const optim::VectorStep& step : program) {
    out(step.kind, step.to, step.lr, static_cast<std::uint32_t>(step.terms.size()));
    for (const optim::VectorTerm& term : step.terms) out(term.factor, term.vector);
  }
  return out.take();
}

// Lists grow with what is read.
Result<optim::VectorProgram> decode_vector_program(std::string_view bytes) {
  Reader in(bytes);
  optim::VectorProgram program;
  std::uint32_t steps = 0;
  in(steps);
  while (program.size() < steps && in.good()) {
    optim::VectorStep& step = program.emplace_back();
    std::uint32_t terms = 0;
    in.upto(step.kind, optim::VectorStep::Kind::kUpdate)(step.to, step.lr, terms);
    while (step.terms.size() < terms && in.good()) {
      optim::VectorTerm& term = step.terms.emplace_back();
      in(term.factor, term.vector);
    }
  }
  if (!in.done()) return malformed("vector program");
  return program;
}

std::string encode(const std::vector<double>& numbers) {
  Writer out;
  out(static_cast<std::uint32_t>(numbers.size()));
  for (const double number : numbers) out(number);
  return out.take();
}

Result<std::vector<double>> decode_numbers(std::string_view bytes) {
  Reader in(bytes);
  std::uint32_t count = 0;
  in(count);
  if (count > bytes.size() / sizeof(double)) return malformed("list of numbers");
  std::vector<double> numbers(count);
  for (double& number : numbers) in(number);
  if (!in.done()) return malformed("list of numbers");
  return numbers;
}

std::string encode_count(std::uint64_t count) { return Writer()(count).take(); }

Result<std::uint64_t> decode_count(std::string_view bytes) {
  Reader in(bytes);
  std::uint64_t count = 0;
  in(count);
  if (!in.done()) return malformed("number");
  return count;
}

std::string encode(const Attachment& a) {
  return Writer()(a.worker, a.part, a.token, a.coordinates).take();
}

Result<Attachment> decode_attachment(std::string_view bytes) {
  Reader in(bytes);
  Attachment a;
  in(a.worker, a.part, a.token, a.coordinates);
  if (!in.done()) return malformed("attachment");
  return a;
}

}  // namespace stormo::server
