#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/model/options.h>
#include <stormo/train/open_keys.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// Where the samples come from. docs/data.md describes the kinds and their files.
struct DataOptions {
  /// "mnist", "text", "image_folder", "csv", "tsv", "text_classification", "npy", "safetensors"
  std::string kind = "mnist";
  std::string path = "data/mnist";  ///< file or folder; "@recipe/..." is relative to the recipe
  std::vector<std::string> extensions = {".txt"};  ///< of the files of a text folder
  std::string tokens = "bytes";                    ///< "bytes" or "characters"
  /// File or folder of each split, relative to path; for all kinds except mnist and text.
  std::string train;                              ///< empty: path itself
  std::string validation;                         ///< empty: no such split
  std::string test;                               ///< empty: no such split
  std::vector<std::int64_t> image = {3, 32, 32};  ///< image_folder: channels, height, width
  std::string on_error = "fail";     ///< files of folders that cannot be read: "fail" or "skip"
  std::string layout = "auto";       ///< arrays of images: "channels_first" or "channels_last"
  double validation_fraction = 0;    ///< of the training part's samples, held out for validation
  double test_fraction = 0;          ///< the same for the test
  bool header = true;                ///< tables: the first line holds names
  std::string label;                 ///< tables: name or number of the column; empty: the last one
  std::vector<std::string> columns;  ///< csv, tsv: of the features; empty: all but the label
  std::string id;  ///< csv, tsv: column that names each row: rows are sorted by it; empty: none
  /// csv, tsv, npy, vertical: where each rank's columns are, relative to path; the names of splits
  /// are relative to that. Empty: in one table, of which each rank reads its columns.
  std::vector<std::string> parts;
  std::vector<std::string> exclude;     ///< csv, tsv: columns that are no features
  std::vector<std::string> categories;  ///< csv, tsv: columns of texts: a feature for each text
  std::string missing = "error";        ///< csv, tsv: "error", "mean", "indicator"
  bool standardise = false;             ///< csv, tsv: columns in units of their standard deviation
  std::vector<double> mean;  ///< images: subtracted from the values; one per channel or one for all
  std::vector<double> stddev;       ///< images: what the values are then divided by
  bool flip = false;                ///< images: in training, half of them are mirrored
  std::int64_t crop = 0;            ///< images: in training, moved by up to so many pixels
  std::int64_t vocabulary = 20000;  ///< text_classification: maximal number of words
  bool pairs = false;      ///< text_classification: pairs of neighbouring words are words too
  std::int64_t bins = 10;  ///< targets that are numbers: ranges by which they are stratified
};

/// Text that a language model writes at the end of a run.
struct SampleOptions {
  std::int64_t length = 0;  ///< tokens; 0: none
  double temperature = 0.8;
  std::int64_t top_k = 0;  ///< 0: all tokens
};

/// The weights that a new run begins with, in place of random ones: fine-tuning.
struct InitOptions {
  std::string from;               ///< a checkpoint, or a folder of them; empty: none
  std::vector<std::string> anew;  ///< names of parameters, or of modules, that begin anew
};

/// Elastic training (docs/elastic.md), where TrainerOptions::commits says so.
struct ElasticTraining {
  std::int64_t min_ranks = 1;    ///< with fewer it waits
  double silence_s = 2;          ///< after which a rank counts as lost
  std::string register_address;  ///< see membership::open_register(); empty: of the launcher
};

/// A training run as a value: everything that `stormo train` needs except the number of ranks.
struct Recipe {
  static constexpr std::int64_t kSchema = 1;

  std::int64_t schema_version = kSchema;
  std::string precision = "float32";   ///< "float32", "float64"; autocast: "bfloat16", "float16"
  std::int64_t threads = 0;            ///< per rank; 0: cores / local ranks
  std::string loss = "cross_entropy";  ///< of classes; "mse": targets are numbers
  model::ModelOptions model;
  DataOptions data;
  SampleOptions sample;
  InitOptions init;
  ElasticTraining elastic;
  std::string access = "umask";    ///< to files: "umask", or for "owner", "group", "everyone"
  std::int64_t verify_state = -1;  ///< see Trainer::verify_state()
  std::int64_t freeze_step = 0;    ///< see Trainer::freeze_after()
  /// The ranks encode the optimizer's momentum, by a pass of `train`: parallel::correct_momentum().
  bool momentum_correction = false;
  OpenKeys open;         ///< of `train`
  TrainerOptions train;  ///< its name is the recipe's; recipe_json is filled by resolve
};

/// A recipe with a list of all errors, one message each, and the origin of each given value
/// ("mnist.toml:12:3", "command line").
struct ParsedRecipe {
  Recipe recipe;
  std::vector<std::string> errors;
  std::map<std::string, std::string, std::less<>> origins;
  /// A line that names the keys of the file that nothing uses with what the overrides choose; they
  /// have their defaults. Empty: there are none.
  std::vector<std::string> left_out;
  bool readable = true;  ///< false: no such file, or not TOML; `recipe` then has defaults

  /// "mnist.toml:12:3: train.steps: ", or "train.steps: " for a default.
  std::string at(std::string_view key) const;
};

/// Reads the TOML `text`, then applies `overrides` of the form key=value. Keys are dotted; the last
/// part is sufficient if it is unique ("lr"), and "batch" stands for train.global_batch. `source`
/// appears in messages, `folder` replaces "@recipe". Finds all errors; never throws.
ParsedRecipe parse_recipe(std::string_view text, std::string_view source, std::string_view folder,
                          std::span<const std::string> overrides);
/// The same for a file; a file that cannot be read is an error in the list.
ParsedRecipe load_recipe(const std::string& path, std::span<const std::string> overrides);

/// The recipe that a checkpoint keeps as the JSON of to_json(), then `overrides` as above.
ParsedRecipe restore_recipe(std::string_view json, std::span<const std::string> overrides);

/// Errors in the combination of values, for a job of `ranks` ranks; reads no file.
std::vector<std::string> check_recipe(const ParsedRecipe& parsed, int ranks);

/// Every key with its value, as TOML that parses to the same recipe.
std::string to_toml(const Recipe& recipe);
/// The same as one line of JSON, for manifests.
std::string to_json(const Recipe& recipe);
/// The reference of all keys, as Markdown.
std::string recipe_reference();

}  // namespace stormo::train
