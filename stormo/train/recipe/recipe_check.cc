#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <stormo/model/registry.h>
#include <stormo/parallel/pipeline/pipeline_schedule.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/optimizer/learning_rate.h>
#include <stormo/train/recipe/recipe_keys.h>
#include <stormo/train/sampling.h>
#include <stormo/train/step/few_numbers.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/step/topology_file.h>
#include <stormo/train/step/variance_freeze.h>

namespace stormo::train {
namespace {

constexpr std::int64_t kMnistPixels = 28 * 28;
constexpr std::int64_t kMnistClasses = 10;

constexpr const char* kNeedsValidation =
    "needs a validation part; write data.validation=NAME or data.validation_fraction=0.1 (not "
    "mnist)";

class RecipeCheck {
 public:
  RecipeCheck(const ParsedRecipe& parsed, int ranks)
      : parsed_(parsed), recipe_(parsed.recipe), ranks_(ranks) {
    leave_out_unused(recipe_);  // see check_keys_of_kinds()
  }

  std::vector<std::string> run() {
    check_training();
    check_optimizer();
    check_model();
    check_strategy();
    check_checkpoint();
    return std::move(errors_);
  }

 private:
  bool is_read(std::string_view key) const {
    return std::ranges::none_of(parsed_.errors, [prefix = parsed_.at(key)](const std::string& e) {
      return e.starts_with(prefix);
    });
  }

  /// A key whose value could not be read holds its default, which is nobody's mistake.
  void require(bool holds, std::string_view key, const std::string& message) {
    if (!holds && is_read(key)) errors_.push_back(parsed_.at(key) + message);
  }

  void check_training() {
    require(train_.steps > 0 || train_.epochs > 0, "train.steps",
            "neither train.steps nor train.epochs is given; write steps=N or epochs=N");
    require(train_.global_batch >= 1, "train.global_batch", "missing; write batch=N");
    const int replicas = replicas_of(train_, ranks_);
    require(train_.global_batch < 1 || train_.global_batch >= replicas, "train.global_batch",
            fmt::format("a batch of {} gives {} {} less than one sample each; raise it to at "
                        "least {} (batch={}), start fewer ranks (-n), or let ranks share samples "
                        "(strategy.pipeline, tensor, context)",
                        train_.global_batch, replicas,
                        ranks_of_replica(train_.strategy) > 1 ? "replicas" : "ranks", replicas,
                        replicas));
    require(train_.micro_batches <= std::max<std::int64_t>(1, train_.global_batch),
            "train.micro_batches",
            fmt::format("{} parts of a batch of {}; use at most as many as it has samples",
                        train_.micro_batches, train_.global_batch));
  }

  void check_optimizer() {
    using Kind = OptimizerOptions::Kind;
    const OptimizerOptions& o = train_.optimizer;
    require(o.lr > 0, "optimizer.lr", "must be greater than 0");
    require(o.lr <= 0 || recipe_.precision == "float64" || static_cast<float>(o.lr) > 0,
            "optimizer.lr", "is 0 as a float32, the type of the parameters; write a larger one");
    require(!o.nesterov || o.kind == Kind::kMuon || (o.kind == Kind::kSgd && o.momentum > 0),
            "optimizer.nesterov",
            "needs kind muon, or sgd and a momentum; write optimizer.momentum=0.9");
    const bool corrects = recipe_.momentum_correction;
    require(!corrects || (o.kind == Kind::kSgd && o.momentum > 0 && o.momentum < 1 && !o.nesterov),
            "strategy.momentum_correction",
            "is of the momentum of sgd, below 1 and without nesterov; write optimizer.kind=sgd "
            "optimizer.momentum=0.9, or leave it out");
    require(o.kind != Kind::kMuon || o.momentum > 0, "optimizer.momentum",
            "is that of the mean of gradients which muon makes orthogonal; write "
            "optimizer.momentum=0.95");
    require(o.kind != Kind::kLars || o.trust > 0, "optimizer.trust", "must be greater than 0");
    if (recipe_.freeze_step > 0) {
      const Status freeze = check_freeze(train_, recipe_.precision == "float16");
      require(freeze.ok(), "optimizer.freeze_step", freeze.message());
    }
    const LearningRateOptions& rate = train_.learning_rate;
    const double peak = scaled_learning_rate(rate, o.lr, train_.global_batch);
    require(
        rate.kind != LearningRateOptions::Kind::kCosine || rate.min_lr <= peak,
        "learning_rate.min_lr",
        fmt::format("{} is greater than the learning rate's peak, which is {}", rate.min_lr, peak));
    require(rate.kind != LearningRateOptions::Kind::kStep || rate.step_size > 0,
            "learning_rate.step_size", "missing; write learning_rate.step_size=N");
  }

  void check_model() {
    const model::ModelOptions& m = recipe_.model;
    for (const std::string& error : model::validate(m)) errors_.push_back(error);
    const std::string& data = recipe_.data.kind;
    const std::string needed = needed_data(m.kind);
    const bool numbers = data != "text" && data != "text_classification";
    require(needed.empty() ? numbers : data == needed, "data.kind",
            fmt::format("model \"{}\" cannot learn from data \"{}\"; it needs {}", m.kind, data,
                        needed.empty() ? "numbers, e.g. \"mnist\" or \"csv\""
                                       : fmt::format("\"{}\"", needed)));
    const std::vector<std::int64_t>& image = recipe_.data.image;
    require(image.size() == 3 && (image[0] == 1 || image[0] == 3), "data.image",
            "must be three numbers: channels (1 or 3), height, width");
    check_mnist();
    check_samples();
    check_positions();
  }

  /// Ranks can have parts of the positions where the output is one for each of them.
  void check_positions() {
    const bool has_positions = recipe_.model.kind == "gpt";
    const std::string why = fmt::format(
        "the output of model {} is of a whole sample, not of each position: ranks cannot "
        "have parts of the positions; leave it out, or use model gpt",
        recipe_.model.kind);
    const Strategy& s = train_.strategy;
    require(has_positions || s.context <= 1, "strategy.context", why);
    require(has_positions || !s.sequence_parallel, "strategy.sequence_parallel", why);
  }

  /// What is done to samples before the model sees them.
  void check_samples() {
    const DataOptions& d = recipe_.data;
    const bool table = d.kind == "csv" || d.kind == "tsv";
    const bool arrays = d.kind == "npy" || d.kind == "safetensors";
    const bool images = d.kind == "mnist" || d.kind == "image_folder" || arrays;
    const std::string only_tables = "is for tables (csv, tsv) only";
    const std::string only_images =
        "is for images (mnist, image_folder, npy, safetensors) only; leave it out";
    require(table || d.columns.empty(), "data.columns", only_tables);
    require(table || !d.standardise, "data.standardise", only_tables);
    require(table || d.exclude.empty(), "data.exclude", only_tables);
    require(table || d.categories.empty(), "data.categories", only_tables);
    require(table || d.missing == "error", "data.missing", only_tables);
    require(d.exclude.empty() || d.columns.empty(), "data.exclude",
            "data.columns lists the features already; leave out one of them");
    const bool vertical = train_.strategy.kind == Strategy::Kind::kVertical;
    require(!vertical || (d.categories.empty() && d.missing != "indicator"),
            d.categories.empty() ? "data.missing" : "data.categories",
            "vertical has one feature for each column: leave it out");
    const bool folders = d.kind == "image_folder" || d.kind == "text";
    require(folders || d.on_error == "fail", "data.on_error",
            "is for files that are found in folders (image_folder, text); leave it out");
    require(arrays || d.layout == "auto", "data.layout",
            "is for npy and safetensors; leave it out");
    require(table || d.id.empty(), "data.id", only_tables);
    require(d.parts.empty() || train_.strategy.kind == Strategy::Kind::kVertical, "data.parts",
            "are columns of the samples; write strategy.kind=vertical");
    require(images || d.mean.empty(), "data.mean", only_images);
    require(images || d.stddev.empty(), "data.stddev", only_images);
    require(images || !d.flip, "data.flip", only_images);
    require(images || d.crop == 0, "data.crop", only_images);
    require(recipe_.loss != "mse" || table || arrays, "train.loss",
            "mse needs targets that are numbers: data.kind csv, tsv, npy or safetensors");
    check_fractions();
    check_shards();
  }

  /// Samples of the training part that are held out.
  void check_fractions() {
    const DataOptions& d = recipe_.data;
    const auto check = [&](double fraction, const std::string& key, const std::string& name) {
      require(fraction == 0 || (d.kind != "mnist" && d.kind != "text"), key,
              fmt::format("\"{}\" finds its splits by itself; leave it out", d.kind));
      require(fraction == 0 || name.empty(), key,
              "and a file of that split are both given; leave out one of them");
    };
    check(d.validation_fraction, "data.validation_fraction", d.validation);
    check(d.test_fraction, "data.test_fraction", d.test);
    require(d.validation_fraction + d.test_fraction <= 0.95, "data.validation_fraction",
            "and data.test_fraction leave less than a twentieth for training");
  }

  void check_shards() {
    require(recipe_.data.kind != "text" || !data::is_stratified(train_.sharding), "data.sharding",
            "a text has no classes to stratify by; write data.sharding=shuffled or contiguous");
    require(recipe_.data.bins == DataOptions().bins ||
                (recipe_.loss == "mse" && train_.sharding != data::Sharding::kShuffled),
            "data.bins",
            "are ranges of a target that is a number; write train.loss=mse and "
            "data.sharding=stratified, or leave it out");
    const Status batch = check_sharding(train_, std::max(1, parts_of(train_, ranks_)));
    require(batch.ok(), "data.sharding", batch.message());
  }

  /// The only data that models of numbers and words can learn from; empty: any numbers.
  static std::string needed_data(const std::string& model) {
    if (model == "gpt") return "text";
    return model == "text_classifier" ? "text_classification" : "";
  }

  void check_mnist() {
    const model::ModelOptions& m = recipe_.model;
    if (recipe_.data.kind != "mnist") return;
    if (model::takes_images(m.kind)) {
      require(m.classes >= kMnistClasses, "model.classes",
              fmt::format("{}; the data have {} classes", m.classes, kMnistClasses));
    } else if (m.kind == "mlp" && m.sizes.size() >= 2) {
      require(m.sizes.front() == kMnistPixels && m.sizes.back() >= kMnistClasses, "model.sizes",
              fmt::format("must begin with {} (pixels) and end with {} (classes) for this data",
                          kMnistPixels, kMnistClasses));
    }
  }

  void check_logical_shards() {
    if (train_.logical_shards == 0) return;
    const Status shards = train::check_logical_shards(train_, ranks_);
    require(shards.ok(), "train.logical_shards", shards.message());
    require(recipe_.threads > 0, "threads",
            "logical shards have the same bits where each rank has as many threads, however many "
            "ranks a host has; write threads=1, or another number");
  }

  // On how many hosts the ranks will be is known only later: the Trainer looks at that.
  void check_strategy() {
    const Result<Strategy> chosen = strategy_of(train_);
    const Status codec = check_codec(train_.gradients);
    require(codec.ok(), "strategy.compression", codec.message());
    const Status warmup = check_density_warmup(train_);
    require(warmup.ok(), "strategy.warmup_steps", warmup.message());
    const Status matrices = check_matrices(train_);
    require(matrices.ok(), "optimizer.kind", matrices.message());
    const Status topology = read_topology(train_.strategy.topology).status();
    require(topology.ok(), "strategy.topology", topology.message());
    const Status periods = check_other_periods(train_);
    const bool of_state = !train_.strategy.state_periods.empty();
    require(periods.ok(), of_state ? "strategy.state_periods" : "strategy.local_period",
            periods.message());
    const parallel::Streaming& streaming = train_.strategy.streaming;
    const bool adapts = train_.averaging.adapts() && parallel::streams(streaming);
    require(chosen.ok() || !adapts,
            train_.averaging.max_distance > 0 ? "strategy.max_distance" : "strategy.period_seconds",
            chosen.status().message());
    const bool is_said =
        !codec.ok() || !warmup.ok() || !matrices.ok() || !topology.ok() || !periods.ok() || adapts;
    require(chosen.ok() || is_said, "strategy.reducer", chosen.status().message());
    const Strategy strategy = chosen.ok() ? *chosen : train_.strategy;
    if (strategy.kind == Strategy::Kind::kVertical) check_columns();
    if (strategy.kind != Strategy::Kind::kAuto) {  // else what is chosen is checked by itself
      const Status fits = parallel::check_strategy(strategy, {.ranks_per_host = {ranks_}});
      require(fits.ok(), "strategy.kind", fits.message());
    }
    require(train_.micro_batches >= 1, "train.micro_batches", "must be at least 1");
    if (train_.commits && strategy.pipeline > 1) check_elastic_pipelines(strategy);
    check_logical_shards();
    check_population();
    require(train_.strategy.weight_stashing || recipe_.precision != "bfloat16",
            "strategy.weight_stashing",
            "with bfloat16 a backward uses the 16-bit copies of the weights that its forward made, "
            "not the newest ones; use precision=float32, or leave it out");
    check_keys_of_kinds();
    check_open_keys();
    check_server_processes();
    const double moving = train_.elastic.moving_rate;
    require(moving >= 0 || moving == ElasticOptions().moving_rate, "strategy.moving_rate",
            "must be from 0 to 1 / workers, or -1 for 0.9 / workers");
    const Status portions = check_portions(train_, ranks_);
    require(portions.ok(), "strategy.policy", portions.message());
    const Status averages = check_server_averages(train_);
    require(averages.ok(), "strategy.policy", averages.message());
    const int count = portions_of(train_);
    require(
        train_.global_batch < 1 || train_.global_batch >= count, "strategy.portions",
        fmt::format("a batch of {} has no {} portions; write fewer, or raise train.global_batch",
                    train_.global_batch, count));
  }

  /// That peers can do the work of a lost rank.
  void check_elastic_pipelines(const Strategy& s) {
    const int least = 2 * s.pipeline;
    require(ranks_ >= least, "elastic.enabled",
            fmt::format("each stage of a pipeline has to be there twice: start at least {} ranks, "
                        "not {}",
                        least, ranks_));
    const auto schedule = parallel::pipeline_schedule(s.schedule);
    require(!schedule.ok() || !schedule->overlap, "strategy.schedule",
            "elastic training does not go with schedules whose steps overlap; use 1f1b");
  }

  /// What each rank has of the samples, with vertical sharding.
  void check_columns() {
    const DataOptions& d = recipe_.data;
    const Strategy& s = train_.strategy;
    const bool tables = d.kind == "csv" || d.kind == "tsv";
    require(recipe_.model.kind == "mlp", "model.kind",
            "vertical cuts the first layer of an \"mlp\" only; write model.kind=mlp");
    require(tables || d.kind == "npy", "data.kind",
            fmt::format("vertical reads columns of csv, tsv and npy; \"{}\" has none", d.kind));
    require(d.mean.empty() && d.stddev.empty() && !d.flip && d.crop == 0, "data.mean",
            "vertical has columns of numbers, not images; leave out mean, stddev, flip and crop");
    require(!data::is_stratified(train_.sharding), "data.sharding",
            "vertical: all ranks have the same samples; write data.sharding=shuffled");
    require(d.parts.empty() || s.column_counts.empty(), "strategy.column_counts",
            "is for one table; with data.parts each rank has the columns of its part");
    require(d.parts.empty() || !tables || d.header, "data.header",
            "columns in several parts need names; write data.header=true");
    require(
        d.parts.empty() || ranks_ == 1 || std::ssize(d.parts) == ranks_, "data.parts",
        fmt::format("{} parts for {} ranks; start one rank for each part", d.parts.size(), ranks_));
    require(ranks_ == 1 || s.labels < ranks_, "strategy.labels",
            fmt::format("the labels are on rank {}, and there are ranks 0 to {}", s.labels,
                        ranks_ - 1));
    require(d.parts.empty() || s.labels < std::ssize(d.parts), "strategy.labels",
            fmt::format("is {}, and there are parts 0 to {}", s.labels, d.parts.size() - 1));
  }

  /// Where a choice could not be read, nobody knows what it uses.
  void check_keys_of_kinds() {
    const std::vector<UnusedKey> unused = unused_keys(parsed_.recipe);
    if (unused.empty() || !is_read("strategy.kind") || !is_read("strategy.policy")) return;
    require(false, unused.front().field->key, check_keys(parsed_.recipe).message());
  }

  /// Keys whose values the ranks choose together before the first step.
  void check_open_keys() {
    const OpenKeys& open = recipe_.open;
    if (!open.any()) return;
    const std::string_view key = open.compression ? "strategy.compression" : "strategy.period";
    const Strategy& s = train_.strategy;
    require(!open.compression || !open.period, "strategy.period",
            "is \"auto\", and so is strategy.compression: nobody can say which of them loses less; "
            "give one of them a value, for instance strategy.compression=int8");
    require(!open.period || s.kind == Strategy::Kind::kParameterAveraging, "strategy.period",
            "\"auto\" is for strategy.kind=parameter_averaging; write a number of steps");
    require(!open.period || train_.averaging.max_distance == 0, "strategy.max_distance",
            "adapts a period that is given; write strategy.period=N, the longest one");
    require(!has_servers(s.kind), key,
            "\"auto\" is chosen by ranks of one group, and workers of servers are none; write a "
            "value");
    require(!train_.commits, key,
            "\"auto\" is chosen by all ranks before the first step, and in elastic training some "
            "come later; write a value");
  }

  void check_server_processes() {
    const bool processes = train_.servers.processes > 0;
    require(processes || train_.servers.worker_timeout_s == ServerOptions().worker_timeout_s,
            "strategy.worker_timeout",
            "is for workers and servers behind connections; write strategy.server_processes=1");
    require(train_.servers.processes > 1 || !train_.servers.backups, "strategy.server_backups",
            "a copy is at another server; write strategy.server_processes=2 or more");
    require(processes || !train_.balance_by_speed, "data.balance_by_speed",
            "ranks of one group do equally many steps; write strategy.server_processes=1");
    require(train_.record.empty() || !processes, "strategy.server_processes",
            "--record is for ranks that share memory: who does a lost worker's steps is not in "
            "it; write strategy.server_processes=0");
  }

  void check_checkpoint() {
    require(recipe_.init.anew.empty() || !recipe_.init.from.empty(), "train.init_new",
            "says which weights of a checkpoint not to take; write train.init_from=CHECKPOINT");
    require(!train_.resume || !train_.checkpoint.directory.empty(), "checkpoint.directory",
            "--resume needs the folder of the checkpoints; add --checkpoint DIR");
    const bool best = train_.checkpoint.best != "none";
    require(!best || train_.eval_every > 0, "checkpoint.best",
            "needs evaluations in between; write train.eval_every=N");
    require(train_.patience == 0 || best, "train.patience",
            "needs to know what is better; write checkpoint.best=loss or accuracy");
    const bool classes = recipe_.model.kind != "gpt" && recipe_.loss != "mse";
    require(train_.checkpoint.best != "accuracy" || classes, "checkpoint.best",
            "there is no accuracy without classes; write checkpoint.best=loss");
    require(!best || has_validation(), "checkpoint.best", kNeedsValidation);
  }

  bool has_validation() const {
    const DataOptions& data = recipe_.data;
    const bool given = !data.validation.empty() || data.validation_fraction > 0;
    return data.kind == "text" || (data.kind != "mnist" && given);
  }

  void check_population() {
    const Strategy::Kind kind = train_.strategy.kind;
    if (!is_population(kind) || ranks_ == 1) return;
    require(has_validation(), "strategy.kind", kNeedsValidation);
    const bool distils = kind == Strategy::Kind::kCodistillation;
    require(!distils || recipe_.loss != "mse", "strategy.kind",
            "codistillation compares predicted classes, and the targets are numbers: use "
            "strategy.kind=tournament, or ddp");
    require(!distils || !train_.recompute, "train.recompute",
            "codistillation computes a batch in one piece: leave it out");
  }

  const ParsedRecipe& parsed_;
  Recipe recipe_;
  const TrainerOptions& train_ = recipe_.train;
  int ranks_;
  std::vector<std::string> errors_;
};

}  // namespace

std::vector<std::string> check_recipe(const ParsedRecipe& parsed, int ranks) {
  return RecipeCheck(parsed, ranks).run();
}

}  // namespace stormo::train
