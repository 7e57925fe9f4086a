#include <stormo/train/checkpoint/run_state.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <torch/utils.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <stormo/checkpoint/exchange.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/writer.h>
#include <stormo/plan/project.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/checkpoint/saved_residuals.h>
#include <stormo/train/optimizer/lbfgs_optimizer.h>
#include <stormo/train/recipe/recipe_changes.h>
#include <stormo/train/state/other_slots.h>
#include <stormo/train/state/saved_samples.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {
namespace {

using Tensors = TensorMap;

/// How long the ranks of a run that has been ended may take to go.
constexpr Duration kEndOfRun = std::chrono::seconds(3);
/// How long a process that is cut off from the others may take to see it.
constexpr Duration kTakeOver = std::chrono::seconds(15);

/// What a program may do where its folder has checkpoints already.
constexpr std::string_view kProgramAdvice =
    "go on from there with TrainerOptions::resume, choose another checkpoint.directory, or replace "
    "what is there with TrainerOptions::overwrite";

/// The member of `state` that has the options of a program.
constexpr const char* kSavedOptions = "options";

bool is_program(const TrainerOptions& options) { return options.recipe_json == "{}"; }

/// Its options as to_json() writes them; what they lack of a recipe has its default.
std::string program_json(const TrainerOptions& options) {
  Recipe recipe;
  recipe.train = options;
  return to_json(recipe);
}

/// Step and seed say which samples come next, on any number of ranks, and what the generators give.
/// With a sharding that is not kShuffled, the ranks and the batch of the epoch do, too.
std::string state_json(const TrainerOptions& options, const data::EpochLayout& layout,
                       const GradScaler* scaler, const BestScore& best,
                       const std::string& training_data) {
  nlohmann::json state = {
      {"seed", options.seed}, {"data_order", "seed, epoch"}, {"generators", "seed, step, rank"}};
  if (!training_data.empty()) state[kSavedSamples] = training_data;
  if (is_program(options)) state[kSavedOptions] = nlohmann::json::parse(program_json(options));
  if (options.sharding != data::Sharding::kShuffled) {
    state["data_order"] = "seed, epoch, sharding";
    state["sharding"] = {{"kind", data::name_of(options.sharding)},
                         {"ranks", layout.ranks},
                         {"batch", layout.global_batch}};
  }
  if (scaler != nullptr) {
    for (const auto& [name, value] : scaler->state()) state[name] = value.item<double>();
  }
  if (best.metric() != "none") state["best"] = nlohmann::json::parse(best.to_json());
  return state.dump();
}

/// The rank whose value of a module's buffer counts: of its stage the first one. Of what differs
/// between replicas the first one's counts, whose ranks are the first ones.
Rank owner_of_buffer(const ParameterStore& store, const std::string& name) {
  if (!store.made_for()) return 0;
  const AxisGroups& groups = *store.made_for()->groups;
  for (const plan::SegmentShape& s : store.made_for()->plan.model.segments) {
    if (name.starts_with(s.name + ".")) return groups.first_of_stage(s.stage);
  }
  return groups.first_of_stage(0);
}

}  // namespace

std::optional<std::string> run_in_folder(const std::string& directory) {
  const Result<std::string> newest = checkpoint::newest_checkpoint(directory);
  if (!newest.ok()) return {};
  const auto run = checkpoint::read_run_identity(*newest + "/" + checkpoint::Manifest::kFile);
  return run.ok() ? std::optional(run->id) : std::nullopt;
}

Status check_optimizer_state(const checkpoint::Manifest& manifest, const Optimizer& optimizer,
                             const OptimizerOptions& options) {
  const std::vector<std::string> vectors = optim::Lbfgs::vector_names(options);
  std::set<std::string, std::less<>> known = {std::string(kStepSlot), std::string(kMasterSlot),
                                              std::string(kDelaySlot), std::string(kResidualSlot),
                                              std::string(kOuterMomentumSlot)};
  for (const OptimizerOptions& rule : optim::rules_of(options)) {
    for (const std::string_view slot : optim::slot_names(rule)) known.emplace(slot);
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!is_optimizer_state(name)) continue;
    const std::string_view slot = optimizer_slot(name);
    const bool of_lbfgs = name == kLbfgsNumbers || slot.starts_with("lbfgs_");
    if (of_lbfgs ? !vectors.empty() : known.contains(slot)) continue;
    return invalid_argument("the checkpoint holds '" + name +
                            "', the state of another optimizer; resume with the one that wrote it");
  }
  std::size_t present = manifest.tensors.contains(kLbfgsNumbers) ? 1 : 0, all = 1;
  for (const std::string& vector : vectors) {
    for (const NamedParameter& p : optimizer.parameters()) {
      present += manifest.tensors.contains(optimizer_key(vector, p.name)) ? 1 : 0;
      ++all;
    }
  }
  if (vectors.empty() || present == 0 || present == all) return {};
  return Status(Code::kCorrupt, "the checkpoint holds " + std::to_string(present) + " of " +
                                    std::to_string(all) +
                                    " tensors of the state of L-BFGS with this optimizer.history");
}

RunState::RunState(comm::Communicator& world, torch::nn::Module& module,
                   const TrainerOptions& options, data::Sampler& sampler)
    : best(options.checkpoint.best),
      world_(world),
      module_(module),
      options_(options),
      sampler_(sampler) {}

Status RunState::start(Values values) {
  Tensors tensors = named_state(module_);
  STORMO_RETURN_IF_ERROR(check_same_tensors(world_, tensors));
  if (!options_.checkpoint.directory.empty()) STORMO_RETURN_IF_ERROR(check_names(tensors));
  if (values == Values::kLater) {
    for (const auto& p : module_.named_parameters()) tensors.erase(p.key());
  }
  Result<std::string> from = std::string();  // what rank 0 goes on from
  if (world_.rank() == 0) {
    const Status begun = begin(tensors);
    from = begun.ok() ? Result<std::string>(resumed_from_) : begun;
  }
  from = checkpoint::broadcast_outcome(world_, from);
  if (!from.ok()) {
    (void)world_.barrier();  // whoever ends the group must not come before others have heard why
    return from.status();
  }
  resumed_from_ = *from;
  if (values == Values::kOwn && !options_.resume) {
    for (const auto& p : module_.named_parameters()) {
      if (p.value().requires_grad()) tensors.erase(p.key());
    }
  }
  STORMO_RETURN_IF_ERROR(broadcast_values(world_, tensors));
  if (!options_.resume) return {};
  auto& [sharding, layout] = saved_order_;
  std::array progress{step, samples, static_cast<std::int64_t>(sharding),
                      std::int64_t{layout.ranks}, layout.global_batch};
  STORMO_RETURN_IF_ERROR(world_.broadcast(std::span<std::int64_t>(progress), 0));
  step = progress[0];
  samples = progress[1];
  saved_order_ = {static_cast<data::Sharding>(progress[2]),
                  {static_cast<int>(progress[3]), progress[4]}};
  return resume_order();
}

// Only rank 0 makes or reads them.
void RunState::materialize_segment(model::Chain& chain, std::size_t segment) {
  if (chain.lacks_values(segment)) {
    const bool makes = world_.rank() == 0 && !weights_;
    makes ? chain.make_values(segment) : chain.give_memory(segment);
  }
  Tensors tensors;
  for (const auto& p : chain.segments()[segment]->named_parameters()) {
    const std::string name = chain.segment_names()[segment] + "." + p.key();
    if (!tensor::has_memory(p.value())) {
      throw Error(invalid_argument("'" + name +
                                   "' has no values: they went with an earlier run, in which ranks "
                                   "had parts of this model; make it again"));
    }
    tensors.emplace(name, p.value());
  }
  if (weights_) throw_if_error(read_into(*weights_, tensors).within("resume: " + resumed_from_));
  throw_if_error(broadcast_values(world_, tensors));
}

// The samples of the epoch that are left depend on how it was begun. The same on all ranks.
Status RunState::resume_order() {
  if (sampler_.begins_epoch(samples)) return {};
  const auto& [sharding, layout] = saved_order_;
  if (sharding != options_.sharding) {
    return Status(Code::kRefused, "resume: the epoch of the checkpoint was begun with sharding '" +
                                      data::name_of(sharding) + "', not '" +
                                      data::name_of(options_.sharding) +
                                      "': resume with the same, it can change between epochs");
  }
  if (sharding != data::Sharding::kShuffled) sampler_.keep_layout(samples, layout);
  return {};
}

// On rank 0.
Status RunState::load_order(const std::string& state_json) {
  const auto state = nlohmann::json::parse(state_json, nullptr, false);
  if (!state.contains("sharding")) return {};
  const auto& saved = state["sharding"];
  const auto number = [&saved](const char* key) {
    const bool is_there = saved.contains(key) && saved[key].is_number_integer();
    return is_there ? saved[key].get<std::int64_t>() : 0;
  };
  const data::EpochLayout layout{static_cast<int>(number("ranks")), number("batch")};
  for (std::size_t i = 0; i < data::sharding_names().size(); ++i) {
    const auto sharding = static_cast<data::Sharding>(i);
    const bool is_kind = saved.contains("kind") && saved["kind"] == data::name_of(sharding);
    if (is_kind && data::fits(sharding, layout)) saved_order_ = {sharding, layout};
  }
  if (saved_order_.sharding != data::Sharding::kShuffled) return {};
  return Status(Code::kCorrupt, resumed_from_ + ": the sharding in its manifest is none");
}

// On rank 0; `values` are to be read.
Status RunState::begin(const Tensors& values) {
  const std::string& directory = options_.checkpoint.directory;
  if (directory.empty()) return {};
  STORMO_RETURN_IF_ERROR(checkpoint::probe_checkpoint_directory(directory));
  STORMO_RETURN_IF_ERROR(lock_.take(directory, Deadline::after(kEndOfRun)));
  link_warning = checkpoint::link_warning(directory);
  if (options_.resume) return load_weights(values).within("resume");
  STORMO_ASSIGN_OR_RETURN(
      run_, checkpoint::begin_run(directory, options_.overwrite,
                                  is_program(options_) ? kProgramAdvice : checkpoint::kAdvice));
  return {};
}

Status RunState::take_over(const std::optional<std::string>& earlier) {
  best = BestScore(options_.checkpoint.best);
  const std::string& directory = options_.checkpoint.directory;
  if (directory.empty()) return {};
  STORMO_RETURN_IF_ERROR(checkpoint::probe_checkpoint_directory(directory));
  STORMO_RETURN_IF_ERROR(lock_.take(directory, Deadline::after(kTakeOver)));
  const Result<std::string> newest = checkpoint::newest_checkpoint(directory);
  const bool is_empty = newest.status().code() == Code::kNotFound;
  if (is_empty || (earlier && run_in_folder(directory) == earlier)) {  // it has saved nothing yet
    STORMO_ASSIGN_OR_RETURN(run_, checkpoint::begin_run(directory, /*overwrite=*/!is_empty));
    return {};
  }
  STORMO_RETURN_IF_ERROR(newest.status());
  STORMO_ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::open(*newest));
  run_ = checkpoint::continued_run(reader.manifest().run);
  saved_ = *newest;
  const auto state = nlohmann::json::parse(reader.manifest().state_json, nullptr, false);
  if (state.contains("best")) best.restore(state["best"].dump());
  return {};
}

Status RunState::load_weights(const Tensors& values) {
  STORMO_ASSIGN_OR_RETURN(resumed_from_,
                          checkpoint::newest_checkpoint(options_.checkpoint.directory));
  STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(resumed_from_));
  const Tensors all = named_state(module_);
  STORMO_RETURN_IF_ERROR(check_same_model(reader.manifest(), all).within(resumed_from_));
  STORMO_RETURN_IF_ERROR(read_into(reader, values).within(resumed_from_));
  STORMO_RETURN_IF_ERROR(note_changes(reader.manifest()).within(resumed_from_));
  run_ = checkpoint::continued_run(reader.manifest().run);
  step = reader.manifest().step;
  samples = reader.manifest().samples;
  const auto state = nlohmann::json::parse(reader.manifest().state_json, nullptr, false);
  if (state.contains("best")) best.restore(state["best"].dump());
  STORMO_RETURN_IF_ERROR(load_order(reader.manifest().state_json));
  if (values.size() < all.size()) weights_.emplace(std::move(reader));
  return {};
}

// Whether a recipe may have changed, `stormo train` has asked before any rank started.
Status RunState::note_changes(const checkpoint::Manifest& manifest) {
  std::string before = manifest.recipe_json, now = options_.recipe_json;
  if (is_program(options_)) {
    const auto state = nlohmann::json::parse(manifest.state_json, nullptr, false);
    before = state.contains(kSavedOptions) ? state[kSavedOptions].dump() : "{}";
    now = program_json(options_);
  }
  std::vector<RecipeChange> changes = recipe_changes(before, now);
  const std::string data = saved_samples(manifest.state_json);
  if (!data.empty() && !training_data.empty() && data != training_data) {
    changes.push_back({"data", nlohmann::json(data).dump(), nlohmann::json(training_data).dump(),
                       OnResume::kNamed});
  }
  if (is_program(options_)) {
    STORMO_RETURN_IF_ERROR(check_changes(changes, nullptr, accepted_changes));
  }
  for (RecipeChange& c : changes) {
    changed.push_back({std::move(c.key), std::move(c.before), std::move(c.now)});
  }
  return {};
}

Status RunState::attach(ParameterStore& store, GradScaler* scaler) {
  store_ = &store;
  scaler_ = scaler;
  weights_.reset();
  if (!options_.resume) return {};
  STORMO_RETURN_IF_ERROR((store.whole() ? load_optimizer() : load_parts()).within("resume"));
  return scaler == nullptr ? Status() : load_scaler().within("resume");
}

// Rank 0 reads, the others get what it has.
Status RunState::load_optimizer() {
  Optimizer& optimizer = store_->optimizer();
  if (world_.rank() == 0) {
    STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(resumed_from_));
    Result<Tensors> state = read_optimizer_state(reader);
    if (!state.ok()) return state.status().within(resumed_from_);
    STORMO_RETURN_IF_ERROR(optimizer.load_state(*state).within(resumed_from_));
  }
  Tensors tensors = optimizer.state();
  STORMO_RETURN_IF_ERROR(broadcast_tensors(world_, tensors));
  return world_.rank() == 0 ? Status() : optimizer.load_state(tensors);
}

// Every rank reads what it owns.
Status RunState::load_parts() {
  STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(resumed_from_));
  STORMO_RETURN_IF_ERROR(
      check_optimizer_state(reader.manifest(), store_->optimizer(), options_.optimizer)
          .within(resumed_from_));
  const auto read = [&reader](const std::string& name, std::int64_t begin, std::int64_t end) {
    return read_range(reader, name, begin, end);
  };
  STORMO_RETURN_IF_ERROR(store_->load_state(read).within(resumed_from_));
  if (options_.optimizer.kind != OptimizerOptions::Kind::kLbfgs) return {};
  const auto saved = reader.manifest().tensors.find(kLbfgsNumbers);
  if (saved == reader.manifest().tensors.end()) return {};
  const std::int64_t count = c10::multiply_integers(saved->second.shape);
  STORMO_ASSIGN_OR_RETURN(const torch::Tensor numbers, read(kLbfgsNumbers, 0, count));
  lbfgs_numbers = train::lbfgs_numbers(numbers);
  return {};
}

Status RunState::load_residuals() {
  if (!options_.resume) return {};
  STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(resumed_from_));
  const auto& saved = reader.manifest().tensors;
  std::vector<std::string> names;
  for (const auto& tensor : saved) names.push_back(tensor.first);
  const auto read = [&](const std::string& name) -> Result<torch::Tensor> {
    const auto& shape = saved.at(name).shape;
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor values,
                            read_range(reader, name, 0, c10::multiply_integers(shape)));
    return values.view(shape);
  };
  const auto& made = store_->made_for();
  const bool has_parts = made && !model_axes(made->plan.mesh).empty();
  Result<TensorMap> kept = residuals_for(
      {.rank = world_.rank(), .ranks = world_.size(), .has_parts = has_parts}, names, read);
  if (!kept.ok()) return kept.status().within(resumed_from_);
  store_->keep_residuals(std::move(*kept));
  return {};
}

// What another precision has saved holds no scale: then it begins anew.
Status RunState::load_scaler() {
  Tensors state = scaler_->state();
  if (world_.rank() == 0) {
    STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(resumed_from_));
    const auto saved = nlohmann::json::parse(reader.manifest().state_json, nullptr, false);
    for (auto& [name, value] : state) {
      if (saved.contains(name) && saved[name].is_number()) value.fill_(saved[name].get<double>());
    }
  }
  STORMO_RETURN_IF_ERROR(broadcast_tensors(world_, state));
  return scaler_->load_state(state).within(resumed_from_);
}

// A forward changes buffers: they are copied now, parameters before the next update.
Result<checkpoint::Snapshot> RunState::snapshot() const {
  checkpoint::Snapshot s{
      .pieces = {},
      .step = step,
      .samples = samples,
      .name = options_.name,
      .recipe_json = options_.recipe_json,
      .preprocessing_json = options_.preprocessing_json,
      .state_json = state_json(options_, sampler_.layout(samples), scaler_, best, training_data),
      .torch_version = TORCH_VERSION,
      .run = run_};
  Tensors equal;  // on all ranks
  for (const auto& b : module_.named_buffers()) equal[b.key()] = b.value().detach().clone();
  // the others are in the store's pieces
  for (const auto& p : module_.named_parameters()) {
    const bool frozen = !p.value().requires_grad();
    if (store_->whole() || (frozen && store_->always_readable())) {
      equal[p.key()] = p.value().detach();
    }
  }
  if (store_->whole()) equal.merge(store_->optimizer().state());
  if (!lbfgs_numbers.empty()) equal[kLbfgsNumbers] = lbfgs_tensor(lbfgs_numbers);
  // Those of the first host write them together, so that hosts need no common file system.
  if (world_.cross_rank() == 0) {
    STORMO_RETURN_IF_ERROR(add_pieces(equal, s.pieces));
    s.pieces = checkpoint::share_of(s.pieces, world_.local_rank(), world_.local_size());
  }
  for (const TensorPiece& piece : store_->pieces()) {
    STORMO_RETURN_IF_ERROR(add_piece(piece, s.pieces));
  }
  Tensors own;
  for (auto& [key, values] : store_->residuals())
    own.emplace(saved_residual(world_.rank(), key), values);
  STORMO_RETURN_IF_ERROR(add_pieces(own, s.pieces));
  return s;
}

Result<std::string> RunState::save() {
  STORMO_RETURN_IF_ERROR(share_state());
  Result<std::string> path = checkpoint::save_checkpoint(world_, options_.checkpoint.directory,
                                                         snapshot(), options_.checkpoint.keep);
  if (path.ok()) saved_ = *path;
  return path;
}

Result<std::string> RunState::save_best() {
  STORMO_ASSIGN_OR_RETURN(std::string path, save());
  Result<std::string> named = path;
  if (world_.rank() == 0) {
    const Status status = checkpoint::point_best(path);
    if (!status.ok()) named = status;
  }
  return checkpoint::broadcast_outcome(world_, named);
}

Status RunState::begin_save() {
  if (background_ == nullptr) {
    STORMO_ASSIGN_OR_RETURN(
        background_, checkpoint::AsyncCheckpoint::create(world_, options_.checkpoint.directory,
                                                         options_.checkpoint.keep));
  }
  STORMO_RETURN_IF_ERROR(share_state());
  return background_->begin(snapshot());
}

void RunState::before_update() {
  if (background_ != nullptr) background_->before_update();
}

bool RunState::save_failed() { return background_ != nullptr && background_->failed(); }

// Paths in one folder, whose names sort by step.
std::string RunState::last_saved() {
  const std::string behind = background_ == nullptr ? "" : background_->last_saved();
  return std::max({resumed_from_, behind, saved_});
}

Result<std::string> RunState::finish_save() {
  return background_ == nullptr ? std::string() : background_->finish();
}

// Of both a checkpoint has one copy.
Status RunState::share_state() {
  STORMO_RETURN_IF_ERROR(store_->share_state());
  return share_buffers();
}

Status RunState::share_buffers() {
  std::map<Rank, Tensors> by_owner;
  for (const auto& b : module_.named_buffers()) {
    by_owner[owner_of_buffer(*store_, b.key())].emplace(b.key(), b.value());
  }
  for (const auto& [owner, buffers] : by_owner) {
    STORMO_RETURN_IF_ERROR(broadcast_values(world_, buffers, owner));
  }
  return {};
}

}  // namespace stormo::train
