#include <stormo/train/recipe/recipe_schema.h>

#include <algorithm>
#include <iterator>
#include <variant>

#include <stormo/plan/limits.h>
#include <stormo/plan/logical_shards.h>
#include <stormo/train/recipe/field_lists.h>

namespace stormo::train {
namespace {

constexpr std::string_view kMayDiffer[] = {"threads",         "data.path", "data.train",
                                           "data.validation", "data.test", "data.threads"};

std::vector<RecipeField> general_fields() {
  return {
      {"schema_version", "version of this table; this program reads 1",
       [](Recipe& r) -> FieldPlace { return &r.schema_version; }, 1, 1},
      {"name", "appears in reports and checkpoints",
       [](Recipe& r) -> FieldPlace { return &r.train.name; }},
      {"precision",
       "of parameters and arithmetic; 16 bits: of products only, parameters are float32 "
       "(autocast); "
       "float16 scales the loss",
       [](Recipe& r) -> FieldPlace { return &r.precision; }, 0, 0,
       one_of({"float32", "float64", "bfloat16", "float16"})},
      {"threads", "computing threads per rank; 0: cores / ranks of the host",
       [](Recipe& r) -> FieldPlace { return &r.threads; }, 0, 4096},
  };
}

std::vector<RecipeField> model_fields() {
  return {
      {"model.kind", "which reference model", [](Recipe& r) -> FieldPlace { return &r.model.kind; },
       0, 0, one_of({"mlp", "cnn", "gpt", "resnet20", "text_classifier", "local"})},
      {"model.sizes", "mlp: size of the input, of each hidden layer and of the output",
       [](Recipe& r) -> FieldPlace { return &r.model.sizes; }, 1, 1e9},
      {"model.classes", "cnn, local, resnet20, text_classifier: number of classes",
       [](Recipe& r) -> FieldPlace { return &r.model.classes; }, 1, 1e6},
      {"model.layers", "gpt, text_classifier: number of blocks; text_classifier 0: a bag of words",
       [](Recipe& r) -> FieldPlace { return &r.model.layers; }, 0, 1e4},
      {"model.heads", "gpt, text_classifier: attention heads per block; divides model.width",
       [](Recipe& r) -> FieldPlace { return &r.model.heads; }, 1, 1e4},
      {"model.width", "gpt, text_classifier: size of a token's vector",
       [](Recipe& r) -> FieldPlace { return &r.model.width; }, 1, 1e6},
      {"model.context",
       "tokens that the model sees: gpt: also the length of a sample; "
       "text_classifier: longer samples are cut",
       [](Recipe& r) -> FieldPlace { return &r.model.context; }, 1, 1e6},
      {"model.tied", "gpt: the output layer uses the embedding's weight",
       [](Recipe& r) -> FieldPlace { return &r.model.tied; }},
      {"model.sparse",
       "text_classifier with layers 0: a gradient has only the rows of the words of a step",
       [](Recipe& r) -> FieldPlace { return &r.model.sparse; }},
  };
}

std::vector<RecipeField> data_fields() {
  return {
      {"data.kind", "form of the data, see data.md",
       [](Recipe& r) -> FieldPlace { return &r.data.kind; }, 0, 0,
       one_of({"mnist", "text", "image_folder", "csv", "tsv", "text_classification", "npy",
               "safetensors"})},
      {"data.path", "file or folder; relative to the current folder, or \"@recipe/...\"",
       [](Recipe& r) -> FieldPlace { return &r.data.path; }},
      {"data.extensions", "text: endings of the files that are read from a folder",
       [](Recipe& r) -> FieldPlace { return &r.data.extensions; }},
      {"data.tokens", "text: what one token is",
       [](Recipe& r) -> FieldPlace { return &r.data.tokens; }, 0, 0,
       one_of({"bytes", "characters"})},
      {"data.train", "file or folder below data.path for training; empty: data.path itself",
       [](Recipe& r) -> FieldPlace { return &r.data.train; }},
      {"data.validation", "the same for validation; empty: none",
       [](Recipe& r) -> FieldPlace { return &r.data.validation; }},
      {"data.test", "the same for the test; empty: none",
       [](Recipe& r) -> FieldPlace { return &r.data.test; }},
      {"data.image", "image_folder: channels (1 or 3), height, width after resizing and cropping",
       [](Recipe& r) -> FieldPlace { return &r.data.image; }, 1, 16384},
      {"data.validation_fraction",
       "share of the training samples that is held out for validation, chosen by train.seed; not "
       "for mnist and text",
       [](Recipe& r) -> FieldPlace { return &r.data.validation_fraction; }, 0, 0.9},
      {"data.test_fraction", "the same for the test",
       [](Recipe& r) -> FieldPlace { return &r.data.test_fraction; }, 0, 0.9},
      {"data.layout",
       "npy, safetensors: order of an image's dimensions; auto: channels first, and what looks "
       "like channels last is refused",
       [](Recipe& r) -> FieldPlace { return &r.data.layout; }, 0, 0,
       one_of({"auto", "channels_first", "channels_last"})},
      {"data.on_error",
       "image_folder, text: a file, folder or link that cannot be read ends the run, or is left "
       "out",
       [](Recipe& r) -> FieldPlace { return &r.data.on_error; }, 0, 0, one_of({"fail", "skip"})},
  };
}

std::vector<RecipeField> table_fields() {
  return {
      {"data.header", "csv, tsv, text_classification: the first line holds names of columns",
       [](Recipe& r) -> FieldPlace { return &r.data.header; }},
      {"data.label", "the same: name or number (from 0) of the label's column; empty: the last",
       [](Recipe& r) -> FieldPlace { return &r.data.label; }},
      {"data.columns",
       "csv, tsv: names or numbers of the features' columns; empty: all but the label",
       [](Recipe& r) -> FieldPlace { return &r.data.columns; }},
      {"data.exclude", "csv, tsv: columns that are neither label nor features",
       [](Recipe& r) -> FieldPlace { return &r.data.exclude; }},
      {"data.categories",
       "csv, tsv: columns of texts: each becomes a feature of 0 or 1 for each text that the "
       "training part has in it",
       [](Recipe& r) -> FieldPlace { return &r.data.categories; }},
      {"data.missing",
       "csv, tsv: a missing number is an error, or becomes the mean of its column; indicator: and "
       "a feature says where",
       [](Recipe& r) -> FieldPlace { return &r.data.missing; }, 0, 0,
       one_of({"error", "mean", "indicator"})},
      {"data.id",
       "csv, tsv: column that names each row: rows are sorted by it, and it is no feature",
       [](Recipe& r) -> FieldPlace { return &r.data.id; }},
      {"data.parts",
       "vertical: where the columns of each rank are, below data.path; []: in one table, of which "
       "each rank reads its columns",
       [](Recipe& r) -> FieldPlace { return &r.data.parts; }},
      {"data.standardise",
       "csv, tsv: columns become (value - mean) / standard deviation of the training part; with "
       "train.loss=mse the label too",
       [](Recipe& r) -> FieldPlace { return &r.data.standardise; }},
  };
}

std::vector<RecipeField> sample_fields() {
  return {
      {"data.mean",
       "images: values from 0 to 1 become (value - mean) / stddev; one number, or one per channel; "
       "empty: as data.md says of the kind",
       [](Recipe& r) -> FieldPlace { return &r.data.mean; }, -1e6, 1e6},
      {"data.stddev", "images: see data.mean",
       [](Recipe& r) -> FieldPlace { return &r.data.stddev; }, 0, 1e6},
      {"data.flip", "images: in training, half of them are mirrored, left to right",
       [](Recipe& r) -> FieldPlace { return &r.data.flip; }},
      {"data.crop",
       "images: in training, pixels of black border on every side, out of which a random part is "
       "cut",
       [](Recipe& r) -> FieldPlace { return &r.data.crop; }, 0, 1e4},
      {"data.vocabulary", "text_classification: most words that are told apart, the frequent first",
       [](Recipe& r) -> FieldPlace { return &r.data.vocabulary; }, 1, 5e5},
      {"data.pairs", "text_classification: pairs of neighbouring words count as words too",
       [](Recipe& r) -> FieldPlace { return &r.data.pairs; }},
      {"data.sharding",
       "which samples each rank gets: of random batches, its part of the file, or by class as many "
       "as any other rank, in every epoch or in every batch",
       [](Recipe& r) -> FieldPlace { return &r.train.sharding; }, 0, 0,
       names(data::sharding_names())},
      {"data.bins",
       "train.loss=mse: ranges of the target, with equally many samples, that data.sharding takes "
       "for classes",
       [](Recipe& r) -> FieldPlace { return &r.data.bins; }, 2, 1e4},
      {"data.balance_by_speed", "server_processes: fast workers also do steps of slower ones",
       [](Recipe& r) -> FieldPlace { return &r.train.balance_by_speed; }},
      {"data.threads",
       "threads per rank that load batches ahead; more help where images are decoded",
       [](Recipe& r) -> FieldPlace { return &r.train.data_threads; }, 1, 1024},

      {"sample.length", "text: tokens to write at the end of the run; 0: none",
       [](Recipe& r) -> FieldPlace { return &r.sample.length; }, 0, 1e6},
      {"sample.temperature", "0: always the likeliest token",
       [](Recipe& r) -> FieldPlace { return &r.sample.temperature; }, 0, 100},
      {"sample.top_k", "draw among so many likeliest tokens; 0: among all",
       [](Recipe& r) -> FieldPlace { return &r.sample.top_k; }, 0, 1e6},
  };
}

std::vector<RecipeField> train_fields() {
  return {
      {"train.steps", "optimizer steps of the whole run; 0: train.epochs decides",
       [](Recipe& r) -> FieldPlace { return &r.train.steps; }, 0, kMost},
      {"train.epochs", "passes over the data, when train.steps is 0",
       [](Recipe& r) -> FieldPlace { return &r.train.epochs; }, 0, kMost},
      {"train.global_batch", "samples per step over all ranks; `batch` for short",
       [](Recipe& r) -> FieldPlace { return &r.train.global_batch; }, 1, kMost},
      {"train.loss", "of classes, or mse: mean squared error of a target that is a number",
       [](Recipe& r) -> FieldPlace { return &r.loss; }, 0, 0, one_of({"cross_entropy", "mse"})},
      {"train.seed", "of weights, order of samples and generated text",
       [](Recipe& r) -> FieldPlace { return &r.train.seed; }, 0, kMost},
      {"train.log_every", "steps between reports",
       [](Recipe& r) -> FieldPlace { return &r.train.log_every; }, 1, kMost},
      {"train.eval_every", "steps between evaluations of the validation part; 0: at the end only",
       [](Recipe& r) -> FieldPlace { return &r.train.eval_every; }, 0, kMost},
      {"train.patience",
       "evaluations in a row without a better one (see checkpoint.best) after which the run stops; "
       "0: never",
       [](Recipe& r) -> FieldPlace { return &r.train.patience; }, 0, kMost},
      {"train.clip_norm",
       "largest global norm of the gradient; 0: any; if it is not given: 1 for models of images "
       "that "
       "sgd trains with momentum and without warm-up, else any",
       [](Recipe& r) -> FieldPlace { return &r.train.clip_norm; }, 0, 1e30},
      {"train.micro_batches", "passes that a rank's part of a batch is cut into, to save memory",
       [](Recipe& r) -> FieldPlace { return &r.train.micro_batches; }, 1, kMost},
      {"train.logical_shards",
       "parts that every batch is cut into and whose sums have the same bits on any number of "
       "ranks "
       "up to that; 0: bits depend on the ranks",
       [](Recipe& r) -> FieldPlace { return &r.train.logical_shards; }, 0, plan::kMaxShards},
      {"train.recompute", "keep few activations and compute the others again in backward",
       [](Recipe& r) -> FieldPlace { return &r.train.recompute; }},
      {"train.init_from",
       "checkpoint, or folder of them, whose weights a new run begins with (--init-from); empty: "
       "none",
       [](Recipe& r) -> FieldPlace { return &r.init.from; }},
      {"train.init_new",
       "with train.init_from: parameters, or modules, that begin anew (--init-new)",
       [](Recipe& r) -> FieldPlace { return &r.init.anew; }},
      {"train.verify_every",
       "steps between bitwise comparisons of the replicas; 0: at the end only",
       [](Recipe& r) -> FieldPlace { return &r.train.verify_every; }, 0, kMost},
      {"train.verify_state",
       "steps in which what several ranks hold is compared once, a slice in each, and wrong bits "
       "put right; 0: never; -1: as few as cost 1 % of a step",
       [](Recipe& r) -> FieldPlace { return &r.verify_state; }, -1, kMost},
  };
}

std::vector<RecipeField> elastic_fields() {
  return {
      {"elastic.enabled",
       "the run goes on when ranks are lost, and replacements join it (docs/elastic.md)",
       [](Recipe& r) -> FieldPlace { return &r.train.commits; }},
      {"elastic.min_ranks", "with fewer ranks the run waits for others",
       [](Recipe& r) -> FieldPlace { return &r.elastic.min_ranks; }, 1, plan::kMaxRanks},
      {"elastic.silence", "seconds without a sign of life after which a rank counts as lost",
       [](Recipe& r) -> FieldPlace { return &r.elastic.silence_s; }, 0.1, 3600},
      {"elastic.register",
       "where the record of the members is: quorum://HOST:PORT,... or etcd://HOST:PORT; empty: the "
       "launcher has it; log://FILE: the run in this log of members is replayed",
       [](Recipe& r) -> FieldPlace { return &r.elastic.register_address; }},
  };
}

std::vector<RecipeField> optimizer_fields() {
  return {
      {"optimizer.kind", "update rule",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.kind; }, 0, 0,
       one_of({"sgd", "adamw", "adam", "adagrad", "rmsprop", "lion", "lars", "lamb", "lbfgs",
               "muon"})},
      {"optimizer.lr",
       "learning rate (its peak, with a schedule); lbfgs: step that is tried first, 1 is usual",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.lr; }, 0, 1e6},
      {"optimizer.momentum", "sgd, rmsprop, lars, muon",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.momentum; }, 0, 1},
      {"optimizer.weight_decay", "adamw, lion, lamb, muon: decoupled; else an L2 penalty",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.weight_decay; }, 0, 1e6},
      {"optimizer.beta1", "adam, adamw, lion, lamb, muon: decay of the mean of gradients",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.beta1; }, 0, 0.9999999},
      {"optimizer.beta2",
       "adam, adamw, lamb, muon: decay of the mean of squared gradients; lion: of gradients",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.beta2; }, 0, 0.9999999},
      {"optimizer.epsilon", "adam, adamw, adagrad, rmsprop, lamb, muon: added to the denominator",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.epsilon; }, 0, 1},
      {"optimizer.freeze_step",
       "adam, adamw: > 0: 1-bit Adam: after so many steps the mean of squares stays as it is, and "
       "ranks exchange momenta in strategy.compression; until then gradients without it",
       [](Recipe& r) -> FieldPlace { return &r.freeze_step; }, 0, kMost},
      {"optimizer.nesterov", "sgd, muon: look ahead along the momentum",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.nesterov; }},
      {"optimizer.alpha", "rmsprop: decay of the mean of squared gradients",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.alpha; }, 0, 0.9999999},
      {"optimizer.trust", "lars: trust coefficient",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.trust; }, 0, 1e6},
      {"optimizer.history", "lbfgs: steps from which the curvature of the loss is estimated",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.history; }, 1, optim::kMaxHistory},
      {"optimizer.adjust_lr_fn",
       "muon: factor of lr for a matrix of m x n: original: sqrt(max(1, m / n)), match_rms_adamw: "
       "0.2 sqrt(max(m, n))",
       [](Recipe& r) -> FieldPlace { return &r.train.optimizer.adjust_lr; }, 0, 0,
       one_of({"original", "match_rms_adamw"})},

      {"learning_rate.kind", "schedule of the learning rate",
       [](Recipe& r) -> FieldPlace { return &r.train.learning_rate.kind; }, 0, 0,
       one_of({"constant", "cosine", "step"})},
      {"learning_rate.warmup_steps", "linear rise at the start",
       [](Recipe& r) -> FieldPlace { return &r.train.learning_rate.warmup_steps; }, 0, kMost},
      {"learning_rate.min_lr", "cosine: learning rate of the last step",
       [](Recipe& r) -> FieldPlace { return &r.train.learning_rate.min_lr; }, 0, 1e6},
      {"learning_rate.step_size", "step: steps after which the rate falls, again and again",
       [](Recipe& r) -> FieldPlace { return &r.train.learning_rate.step_size; }, 0, kMost},
      {"learning_rate.gamma", "step: what the rate is multiplied by then",
       [](Recipe& r) -> FieldPlace { return &r.train.learning_rate.gamma; }, 0, 1},
      {"learning_rate.base_batch",
       "global batch for which optimizer.lr was chosen; another one scales it linearly; 0: any",
       [](Recipe& r) -> FieldPlace { return &r.train.learning_rate.base_batch; }, 0, kMost},
  };
}

std::vector<RecipeField> checkpoint_fields() {
  return {
      {"checkpoint.directory", "where checkpoints go; empty: none are written",
       [](Recipe& r) -> FieldPlace { return &r.train.checkpoint.directory; }},
      {"checkpoint.every", "steps between checkpoints; 0: at the end and when interrupted",
       [](Recipe& r) -> FieldPlace { return &r.train.checkpoint.every; }, 0, kMost},
      {"checkpoint.keep", "newest checkpoints that stay",
       [](Recipe& r) -> FieldPlace { return &r.train.checkpoint.keep; }, 1, 1e6},
      {"checkpoint.best", "keep the best checkpoint too, by this number of the validation part",
       [](Recipe& r) -> FieldPlace { return &r.train.checkpoint.best; }, 0, 0,
       one_of({"none", "loss", "accuracy"})},
      {"checkpoint.access",
       "who may read what the run writes: as the umask says, or owner, group, everyone",
       [](Recipe& r) -> FieldPlace { return &r.access; }, 0, 0,
       one_of({"umask", "owner", "group", "everyone"})},
      {"checkpoint.asynchronous",
       "write those of checkpoint.every while training goes on; costs a copy in memory",
       [](Recipe& r) -> FieldPlace { return &r.train.checkpoint.asynchronous; }},
      {"checkpoint.max_failures",
       "failed saves in a row that end the run; before that, the next one due tries again",
       [](Recipe& r) -> FieldPlace { return &r.train.checkpoint.max_failures; }, 1, 1e6},
  };
}

}  // namespace

std::span<const RecipeField> recipe_fields() {
  static const std::vector<RecipeField> fields = [] {
    std::vector<RecipeField> all;
    for (const auto of_part :
         {general_fields, model_fields, data_fields, table_fields, sample_fields, train_fields,
          elastic_fields, optimizer_fields, distribution_fields, checkpoint_fields}) {
      std::ranges::move(of_part(), std::back_inserter(all));
    }
    return all;
  }();
  return fields;
}

bool is_open(const RecipeField& field, const Recipe& recipe) {
  if (field.open == nullptr) return false;
  Recipe copy = recipe;
  return *field.open(copy);
}

void copy_value(const RecipeField& field, const Recipe& from, Recipe& to) {
  Recipe copy = from;
  const FieldPlace place = field.place(copy);
  std::visit([&place](auto* value) { *value = *std::get<decltype(value)>(place); },
             field.place(to));
  if (field.open != nullptr) *field.open(to) = *field.open(copy);
}

const RecipeField* find_field(std::string_view key) {
  const auto field = std::ranges::find(recipe_fields(), key, &RecipeField::key);
  return field == recipe_fields().end() ? nullptr : &*field;
}

std::span<const FormerKey> former_keys() {
  static constexpr FormerKey rows[] = {
      {"strategy.reduce_type", "strategy.compression", "own", "none"}};
  return rows;
}

bool may_differ(const RecipeField& field) {
  return std::ranges::find(kMayDiffer, field.key) != std::end(kMayDiffer);
}

}  // namespace stormo::train
