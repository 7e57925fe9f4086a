#include <stormo/train/server_store/served_store.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <stormo/base/rng.h>
#include <stormo/base/units.h>
#include <stormo/optim/lbfgs.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/train/perform/perform.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/state/other_slots.h>

namespace stormo::train {
namespace {

using server::ShardPiece;

constexpr std::int64_t kNoMemory = -1;
/// For the first worker to load the data and a checkpoint, which the others wait for.
constexpr Duration kStartTime = std::chrono::minutes(10);

}  // namespace

ServedStore::ServedStore(const AxisGroups& groups, const std::shared_ptr<torch::nn::Module>& module,
                         const TrainerOptions& options, server::Facts facts)
    : ServedStore(groups, trainable_parameters(*module), options.optimizer, options,
                  std::move(facts)) {
  if (place_.parts == 1) return;
  ranks_ = groups.over({plan::kWorkerAxis}).take_or_throw();
  served_.copy_all();
  gradients_.emplace(*ranks_, optimizer_.parameters(), [this](const plan::Action& a) { done(a); });
  for (const torch::Tensor& copy : served_.copies()) {
    const auto bytes = static_cast<std::int64_t>(copy.nbytes());
    if (bytes > 0) given_.push_back({copy.mutable_data_ptr(), bytes, DType::kUInt8});
  }
}

ServedStore::ServedStore(const AxisGroups& groups, std::vector<NamedParameter> part,
                         const TrainerOptions& options, server::Facts facts)
    : ServedStore(groups, std::move(part), options.optimizer, options, std::move(facts)) {
  if (session_) return;
  throw Error(invalid_argument(
      "the parts of a worker are on servers of their own, which are processes; make the Trainer "
      "with a session"));
}

ServedStore::ServedStore(const AxisGroups& groups, std::vector<NamedParameter> parameters,
                         const OptimizerOptions& optimizer, const TrainerOptions& options,
                         server::Facts facts, const Values& values)
    : ParameterStore(/*whole=*/false),
      world_(groups.world()),
      session_(options.session),
      place_(worker_part(groups.mesh(), world_.rank())),
      worker_(session_ ? session_->worker() : world_.rank() / place_.parts),
      workers_(session_ ? session_->workers() : world_.size() / place_.parts),
      optimizer_(optimizer, std::move(parameters)),
      served_(ServedParameters::create(values(optimizer_), options, workers_).take_or_throw()),
      sequence_(served_.shards()),
      calls_(world_, session_.get(), worker_),
      pull_(served_, shards_),
      early_push_(served_, shards_, sequence_),
      versions_(served_.shards()) {
  set_served(this);
  if (!session_) create_shards();
  if (session_ && leads()) share_shards(std::move(facts));
  if (!options.record.empty()) start_record(options);
}

Status ServedStore::needs_one_host() {
  return invalid_argument(
      "strategies with servers keep parameters in memory that the ranks of one host share; "
      "use one host, and Stormo's own engine");
}

// All shards lie in the Arena of rank 0, which lives until the last rank has ended.
void ServedStore::create_shards() {
  if (world_.cross_size() > 1 || world_.peer_address(0, 0) == nullptr) {
    throw Error(needs_one_host());
  }
  const transport::WaitPolicy wait =
      transport::wait_policy(world_.size(), transport::usable_cores());
  std::vector<std::unique_ptr<server::HostShard>> shards;
  for (std::size_t s = 0; s < served_.shards(); ++s) {
    shards.push_back(served_.make_shard(
        s, worker_, {.policy = wait, .status = [this] { return world_.status(); }}));
  }
  std::vector<std::int64_t> offsets(shards.size(), kNoMemory);
  if (world_.rank() == 0) {
    for (std::size_t s = 0; s < shards.size(); ++s) {
      void* memory = world_.arena().allocate(shards[s]->bytes());
      if (memory == nullptr) break;
      memory_.push_back(static_cast<std::byte*>(memory));
      shards[s]->create(memory_.back());
      throw_if_error(served_.copy_values_to(*shards[s], s));
      offsets[s] = static_cast<std::int64_t>(world_.arena().offset_of(memory));
    }
  }
  throw_if_error(world_.broadcast(offsets, 0));
  for (std::size_t s = 0; s < shards.size(); ++s) {
    if (offsets[s] == kNoMemory) {
      throw Error(Status(Code::kExhausted, "no room in the Arena of rank 0 for " +
                                               format_bytes(shards[s]->bytes()) +
                                               " of server shard " + std::to_string(s) +
                                               "; use a smaller model, or "
                                               "fewer workers"));
    }
    if (!leads()) continue;
    if (world_.rank() != 0) {
      shards[s]->attach(world_.peer_address(0, static_cast<std::uint64_t>(offsets[s])));
    }
    shards_.push_back(std::move(shards[s]));
  }
}

// The first worker brings what all agree on, and the first values.
void ServedStore::share_shards(server::Facts facts) {
  server::RunTerms terms = served_.terms();
  terms.facts = std::move(facts);
  auto shards = session_->shards(terms, Deadline::after(kStartTime));
  if (shards.status().code() == Code::kMismatch) {
    throw Error(invalid_argument(shards.status().message()));  // the user can put it right
  }
  shards_ = std::move(shards).take_or_throw();
  if (!session_->opens()) return;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    throw_if_error(served_.copy_values_to(*shards_[s], s));
  }
}

void ServedStore::start_record(const TrainerOptions& options) {
  const std::string& directory = options.record;
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) {
    throw Error(io_error("cannot make the folder '" + directory + "': " + failed.message()));
  }
  recorder_ =
      server::ShardRecorder::create(server::record_path(directory, worker_),
                                    server::record_origin(fnv1a(options.recipe_json), worker_))
          .take_or_throw();
}

void ServedStore::note(server::ShardEvent::Kind kind, std::size_t shard, std::uint64_t commit,
                       TimePoint at) {
  if (!recorder_) return;
  recorder_->add({.commit = commit,
                  .kind = kind,
                  .shard = static_cast<std::uint32_t>(shard),
                  .step = steps_,
                  .at_ns = Duration(at.time_since_epoch()).count()});
}

ServedStore::~ServedStore() {
  served_.keep_values();
  // after a failure others may still look at what lies there
  if (!world_.barrier().ok()) return;
  for (std::byte* memory : memory_) world_.arena().deallocate(memory);
}

// Before the first step: what rank 0 has set and loaded is seen by all.
void ServedStore::set_plan(const plan::StepPlan& plan) {
  if (gradients_) gradients_->set_plan(plan);
  pull_.set_plan(plan);
  if (ranks_ != nullptr) requests_ = analysis::PlanRequests(plan);
  last_push_ = {};
  for (const plan::Action& a : plan.actions) {
    if (places(a, plan::Value::kGradients, plan::Placement::kRemote)) last_push_ = a;
  }
  early_push_.set_plan(plan);
  if (!std::exchange(begun_, true)) throw_if_error(world_.barrier());
}

Status ServedStore::perform(const plan::Action& action, double weight) {
  const bool pulls = row_of(action.kind).takes_from(plan::Placement::kRemote);
  if (!pulls) return gradients_->perform(action, weight);
  if (leads()) STORMO_RETURN_IF_ERROR(pull(action.asynchronous));
  if (ranks_ != nullptr) STORMO_RETURN_IF_ERROR(give_to_ranks(requests_.of(action).at(0)));
  done(action);
  return {};
}

/// What the first rank of a worker shows, all its ranks show then.
Status ServedStore::give_to_ranks(const analysis::Collective& sent) {
  std::int64_t bytes = 0;
  for (const comm::Buffer& b : given_) bytes += b.count;
  STORMO_RETURN_IF_ERROR(check_elements(sent, bytes, DType::kUInt8));
  return perform_transfer(*ranks_, sent, in_place(given_));
}

// The first pull of a step begins that of all parameters.
Status ServedStore::pull(bool asynchronous) {
  const ShardCalls::Call call(calls_, comm::Operation::AtShards::kPull);
  const Status begun = pull_.under_way() ? Status() : pull_.begin();
  if (begun.ok() && asynchronous) return {};
  const Status finished = finish_pull();
  return begun.ok() ? finished : begun;
}

Status ServedStore::make_readable(plan::Range segments) {
  if (!pull_.under_way()) return {};
  const ShardCalls::Call call(calls_, comm::Operation::AtShards::kPull);
  const TimePoint begun = std::chrono::steady_clock::now();
  STORMO_RETURN_IF_ERROR(pull_.make_readable(segments));
  if (sink() == nullptr) return {};
  sink()->record({.lane = Lane::kWait,
                  .name = "pull",
                  .start = begun,
                  .end = std::chrono::steady_clock::now()});
  return {};
}

Status ServedStore::finish_pull() {
  STORMO_ASSIGN_OR_RETURN(const Views views, pull_.finish());
  for (std::size_t s = 0; s < views.size(); ++s) {
    note(server::ShardEvent::Kind::kRead, s, views[s].commit);
    versions_[s] = views[s].version;
  }
  return {};
}

// An asynchronous push of some parameters is a part of what the last one completes.
Status ServedStore::push(const plan::Action& action, const StepRate& rate, double weight) {
  if (action != last_push_) {
    done(action);
    return {};
  }
  const ShardCalls::Call call(calls_, comm::Operation::AtShards::kPush);
  if (pull_.under_way()) STORMO_RETURN_IF_ERROR(finish_pull());
  lr_ = rate.lr;
  if (gradients_) {
    weight = gradients_->samples() - std::exchange(pushed_samples_, gradients_->samples());
  }
  const bool sums = served_.has_copies();
  const std::vector<torch::Tensor> gradients = sums ? copy_.take() : served_.gradients();
  const std::size_t count = shards_.size();
  std::vector<std::vector<server::PushedPiece>> pieces;
  std::vector<server::PushedGradient> pushes;
  for (std::size_t s = 0; s < count; ++s) {
    std::vector<server::PushedPiece>& of =
        pieces.emplace_back(served_.gradient_pieces(s, gradients));
    for (std::size_t i = 0; i < of.size(); ++i) of[i].is_sent = early_push_.is_sent(s, i);
    pushes.push_back({.pieces = of,
                      .lr = rate.lr,
                      .gradient_scale = sums ? 1 : rate.gradient_scale,
                      .weight = weight,
                      .loss_sum = rate.loss * weight,
                      .sequence = sequence_[s],
                      .portion = portion_,
                      .batch = batch_});
  }
  STORMO_RETURN_IF_ERROR(push_all(pushes));
  ++steps_;
  done(action);
  return {};
}

Status ServedStore::push_all(const std::vector<server::PushedGradient>& pushes) {
  const std::size_t count = shards_.size();
  const auto nth = [&](std::size_t n) { return (n + static_cast<std::size_t>(worker_)) % count; };
  for (std::size_t n = 0; n < count; ++n) shards_[nth(n)]->begin_push(pushes[nth(n)]);
  Status outcome;
  const TimePoint begun = std::chrono::steady_clock::now();
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t s = nth(n);
    const Result<server::Shard::Pushed> pushed = shards_[s]->push(pushes[s]);
    if (!pushed.ok() && outcome.ok()) outcome = pushed.status();
    if (!pushed.ok()) continue;
    note(server::ShardEvent::Kind::kPush, s, pushed->commit, begun);
    record_push(s, pushed->decision, begun);
    ++sequence_[s];
  }
  return outcome;
}

// Pushes to several shards overlap: each interval begins with the first of them.
void ServedStore::record_push(std::size_t shard, const protocol::PushDecision& decision,
                              TimePoint begun) {
  if (sink() == nullptr || decision.action == protocol::PushAction::kRepeated) return;
  const bool is_used = decision.action != protocol::PushAction::kDrop;
  const std::string name = "push to shard " + std::to_string(shard);
  sink()->record({.lane = Lane::kCommunication,
                  .name = name,
                  .weights = static_cast<std::int64_t>(versions_[shard]),
                  .staleness = is_used ? static_cast<std::int64_t>(decision.staleness) : -1,
                  .start = begun,
                  .end = std::chrono::steady_clock::now()});
}

Status ServedStore::update(const ParameterRange& /*range*/, const StepRate& rate) {
  copy_.step(optimizer_.parameters(), served_.gradients(), rate);
  if (!leads()) copy_.take();  // the first rank of the worker pushes the sums
  return {};
}

void ServedStore::zero_grad() {
  if (gradients_) gradients_->next_pass();
  early_push_.next_pass();
  ParameterStore::zero_grad();
}

// After the pushes of all.
ServedStore::Views ServedStore::look() {
  throw_if_error(world_.barrier());
  Views views;
  for (const auto& shard : shards_) views.push_back(shard->look().take_or_throw());
  return views;
}

GatheredParameters ServedStore::gather() {
  const Views views = look();
  if (leads()) served_.show(views);
  if (ranks_ != nullptr) throw_if_error(ranks_->broadcast(given_, 0));
  return nullptr;
}

// One worker saves all. Its own pull, after the copy, is what frees the version.
std::vector<TensorPiece> ServedStore::pieces() const {
  std::vector<TensorPiece> out;
  const bool saves = session_ ? session_->is_chief() : worker_ == 0;
  if (!saves) return out;
  const OptimizerOptions& rule = optimizer_.options();
  const auto slots = optim::slot_names(rule);
  const std::vector<std::string> vectors = optim::Lbfgs::vector_names(rule);
  for (const auto& shard : shards_) {
    const auto add = [&](std::size_t i, const server::PieceArrays& arrays) {
      const ShardPiece& at = shard->pieces()[i];
      const NamedParameter& p = served_.parameters()[at.parameter];
      const auto type = torch::dtype(p.tensor.scalar_type());
      const torch::Tensor weights = torch::from_blob(arrays.weights, {at.elements()}, type);
      // in place, the memory changes while a checkpoint is written
      out.push_back({p.name, p.tensor.sizes().vec(), at.begin, at.end,
                     served_.in_place() ? weights.clone() : weights});
      for (std::size_t v = 0; v < vectors.size(); ++v) {
        out.push_back({optimizer_key(vectors[v], p.name), p.tensor.sizes().vec(), at.begin, at.end,
                       torch::from_blob(arrays.vectors[v], {at.elements()}, type).clone()});
      }
      if (arrays.updates == 0) return;
      for (std::size_t s = 0; s < slots.size(); ++s) {
        out.push_back({optimizer_key(slots[s], p.name), p.tensor.sizes().vec(), at.begin, at.end,
                       torch::from_blob(arrays.slots[s], {at.elements()}, type).clone()});
      }
      if (arrays.mean_square != nullptr) {
        out.push_back({optimizer_key(kDelaySlot, p.name), p.tensor.sizes().vec(), at.begin, at.end,
                       torch::from_blob(arrays.mean_square, {at.elements()}, type).clone()});
      }
      if (at.begin != 0 || !optim::counts_steps(rule.kind)) return;
      out.push_back({optimizer_key(kStepSlot, p.name),
                     {},
                     0,
                     1,
                     torch::full({1}, static_cast<double>(arrays.updates), torch::kFloat32)});
    };
    throw_if_error(shard->save(add).status());
  }
  return out;
}

Status ServedStore::load_state(const ReadState& read) {
  if (worker_ != 0) return {};
  const OptimizerOptions& rule = optimizer_.options();
  const auto slots = optim::slot_names(rule);
  const std::vector<std::string> vectors = optim::Lbfgs::vector_names(rule);
  for (const auto& shard : shards_) {
    for (std::size_t i = 0; i < shard->pieces().size(); ++i) {
      const ShardPiece& at = shard->pieces()[i];
      const NamedParameter& p = optimizer_.parameters()[at.parameter];
      server::PieceArrays arrays;
      std::vector<torch::Tensor> values;  // alive until they are set
      const auto array = [&](std::string_view name) -> Result<std::byte*> {
        STORMO_ASSIGN_OR_RETURN(const torch::Tensor saved,
                                read(optimizer_key(name, p.name), at.begin, at.end));
        if (!saved.defined()) return nullptr;
        values.push_back(saved.flatten().to(p.tensor.scalar_type()).contiguous());
        return static_cast<std::byte*>(values.back().data_ptr());
      };
      for (std::size_t s = 0; s < slots.size(); ++s) {
        STORMO_ASSIGN_OR_RETURN(arrays.slots[s], array(slots[s]));
        if (arrays.slots[s] != nullptr) arrays.updates = 1;
      }
      STORMO_ASSIGN_OR_RETURN(arrays.mean_square, array(kDelaySlot));
      if (arrays.mean_square != nullptr) arrays.updates = 1;
      for (const std::string& name : vectors) {
        STORMO_ASSIGN_OR_RETURN(std::byte * vector, array(name));
        arrays.vectors.push_back(vector);
      }
      if (optim::counts_steps(rule.kind)) {
        STORMO_ASSIGN_OR_RETURN(const torch::Tensor count,
                                read(optimizer_key(kStepSlot, p.name), 0, 1));
        if (count.defined()) arrays.updates = static_cast<std::int64_t>(count.item<float>());
      }
      STORMO_RETURN_IF_ERROR(shard->set(i, arrays));
    }
  }
  return {};
}

Status ServedStore::leave() {
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    STORMO_ASSIGN_OR_RETURN(const std::uint64_t commit, shards_[s]->leave(lr_));
    note(server::ShardEvent::Kind::kLeave, s, commit);
  }
  // the training matters more than its record
  if (recorder_ && record_status_.ok()) record_status_ = recorder_->flush();
  return {};
}

Status ServedStore::join() {
  pull_.abandon();
  if (leads()) calls_.begin_round();
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    STORMO_ASSIGN_OR_RETURN(const server::Shard::Joined joined, shards_[s]->join());
    sequence_[s] = joined.sequence;
    note(server::ShardEvent::Kind::kJoin, s, joined.commit);
  }
  return {};
}

Result<std::vector<ServedWorker::ShardReport>> ServedStore::shard_reports() const {
  std::vector<ShardReport> out;
  for (const auto& shard : shards_) {
    ShardReport& report = out.emplace_back();
    for (const ShardPiece& piece : shard->pieces()) report.bytes += piece.bytes();
    STORMO_ASSIGN_OR_RETURN(report.state, shard->state());
  }
  return out;
}

}  // namespace stormo::train
