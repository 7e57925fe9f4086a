#include <stormo/train/recipe/recipe.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include <stormo/base/json_depth.h>
#include <stormo/base/text.h>
#include <stormo/base/units.h>
#include <stormo/checkpoint/file/checked_file.h>
#include <stormo/model/registry.h>
#include <stormo/parallel/computation/correct_momentum.h>
#include <stormo/parallel/pipeline/pipeline_schedule.h>
#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/train/recipe/recipe_keys.h>
#include <stormo/train/recipe/recipe_schema.h>
#include <stormo/train/recipe/toml_depth.h>

namespace stormo::train {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxRecipeBytes = 1u << 20;
constexpr std::size_t kMostErrors = 50;  // that are listed
constexpr std::size_t kMostShown = 100;  // characters of a key or a value
constexpr std::string_view kBesideRecipe = "@recipe";
/// Short names whose last part is not the key's.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"batch", "train.global_batch"}, {"strategy", "strategy.kind"}};
/// What other programs call a key, by its last part, and what it is called here.
constexpr std::pair<std::string_view, std::string_view> kNamesElsewhere[] = {
    {"batch_size", "train.global_batch"},   {"learning_rate", "optimizer.lr"},
    {"max_steps", "train.steps"},           {"num_classes", "model.classes"},
    {"num_epochs", "train.epochs"},         {"num_workers", "data.threads"},
    {"reduce_type", "strategy.compression"}};

/// What other programs call the choice of a device.
constexpr std::string_view kDeviceKeys[] = {"accelerator", "device", "devices", "gpus", "tpu"};

/// Devices for which other programs have a strategy.
constexpr std::string_view kDevices[] = {"cuda", "gpu", "hpu", "mps", "npu",
                                         "rocm", "tpu", "xla", "xpu"};

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

/// The field that an override means: a whole key, an alias, or a last part that only one key has.
const RecipeField* find_override(std::string_view key) {
  for (const auto& [alias, target] : kAliases) {
    if (alias == key) return find_field(target);
  }
  if (const RecipeField* field = find_field(key)) return field;
  const RecipeField* found = nullptr;
  for (const RecipeField& field : recipe_fields()) {
    if (last_part(field.key) != key) continue;
    if (found != nullptr) return nullptr;
    found = &field;
  }
  return found;
}

/// "; did you mean 'optimizer.lr'?", for the whole key or for its last part.
std::string suggestion(std::string_view key) {
  if (key.size() > kMostShown) return "";
  if (std::ranges::find(kDeviceKeys, last_part(key)) != std::ranges::end(kDeviceKeys)) {
    return "; Stormo trains on CPUs only, so there is no device to choose: leave it out";
  }
  for (const auto& [theirs, ours] : kNamesElsewhere) {
    if (last_part(key) == theirs) return fmt::format("; did you mean '{}'?", ours);
  }
  std::vector<std::string_view> whole, last, same;
  for (const RecipeField& field : recipe_fields()) {
    whole.push_back(field.key);
    last.push_back(last_part(field.key));
    if (last.back() == key) same.push_back(field.key);
  }
  if (same.size() > 1)
    return fmt::format("; several keys end so: write one of {}", fmt::join(same, ", "));
  std::string_view near = nearest_match(key, whole);
  const std::string_view near_last = nearest_match(last_part(key), last);
  // A right name in the wrong section is closer to what was meant than a similar whole key.
  if (!near_last.empty() &&
      (near.empty() || edit_distance(last_part(key), near_last) < edit_distance(key, near))) {
    near = whole[static_cast<std::size_t>(std::find(last.begin(), last.end(), near_last) -
                                          last.begin())];
  }
  if (near.empty()) return "; `stormo train --help-recipe` lists all keys";
  return fmt::format("; did you mean '{}'?", near);
}

/// Null for what no key can have, such as a date.
Json to_json(const toml::node& node) {
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* array = node.as_array()) {
    Json list = Json::array();
    for (const toml::node& item : *array) list.push_back(to_json(item));
    return list;
  }
  return nullptr;
}

std::string shortened(std::string_view text) {
  if (text.size() <= kMostShown) return std::string(text);
  return fmt::format("{}... ({} characters)", text.substr(0, kMostShown), text.size());
}

/// For messages.
std::string show(const Json& raw) {
  if (raw.is_string()) {
    const auto text = raw.get<std::string>();
    return fmt::format("\"{}{}\"", text.substr(0, kMostShown),
                       text.size() > kMostShown ? "..." : "");
  }
  if (raw.is_boolean()) return raw.get<bool>() ? "true" : "false";
  if (raw.is_number_integer()) return fmt::format("{}", raw.get<std::int64_t>());
  if (raw.is_number()) return fmt::format("{}", raw.get<double>());
  return raw.is_array() ? "a list" : "something else";
}

Status check_range(const RecipeField& field, double value) {
  if (value >= field.min && value <= field.max) return ok_status();
  return invalid_argument(value < field.min
                              ? fmt::format("must be at least {}, not {}", field.min, value)
                              : fmt::format("must be at most {}, not {}", field.max, value));
}

Status unknown_choice(const RecipeField& field, const std::string& text) {
  std::vector<std::string_view> choices = field.choices;
  if (field.open != nullptr) choices.push_back(kAutoWord);
  const std::string_view near = nearest_match(text.substr(0, kMostShown), choices);
  const bool is_device =
      field.key == "strategy.kind" && std::ranges::find(kDevices, text) != std::end(kDevices);
  return invalid_argument(fmt::format(
      "{}must be one of {}, not {}{}", is_device ? "Stormo trains on CPUs only: it " : "",
      fmt::join(choices, ", "), show(text),
      near.empty() ? std::string() : fmt::format("; did you mean \"{}\"?", near)));
}

template <class T>
constexpr bool kIsText = std::is_same_v<T, std::string> || std::is_enum_v<T>;

/// Whether `raw` was written as a T.
template <class T>
bool is_a(const Json& raw) {
  if constexpr (kIsText<T>) return raw.is_string();
  if constexpr (std::is_same_v<T, bool>) return raw.is_boolean();
  return std::is_same_v<T, double> ? raw.is_number() : raw.is_number_integer();
}

/// kInvalidArgument says which values are allowed.
template <class T>
Status assign(const RecipeField& field, const Json& raw, T& place) {
  if (!is_a<T>(raw)) {
    return invalid_argument(fmt::format("must be {}, not {}", type_name(field), show(raw)));
  }
  if constexpr (kIsText<T>) {
    const auto text = raw.get<std::string>();
    const auto choice = std::ranges::find(field.choices, text);
    if (!field.choices.empty() && choice == field.choices.end()) {
      return unknown_choice(field, text);
    }
    if constexpr (std::is_enum_v<T>) {
      place = static_cast<T>(choice - field.choices.begin());
    } else {
      place = text;
    }
  } else {
    if constexpr (!std::is_same_v<T, bool>) {
      STORMO_RETURN_IF_ERROR(check_range(field, raw.get<double>()));
    }
    place = raw.get<T>();
  }
  return ok_status();
}

template <class Element>
Status assign(const RecipeField& field, const Json& raw, std::vector<Element>& place) {
  if (!raw.is_array()) {
    return invalid_argument(fmt::format("must be {}, not {}", type_name(field), show(raw)));
  }
  std::vector<Element> elements;
  for (const Json& item : raw) {
    const std::size_t number = elements.size() + 1;
    if (!is_a<Element>(item)) {
      return invalid_argument(
          fmt::format("must be a {}, but element {} is {}", type_name(field), number, show(item)));
    }
    STORMO_RETURN_IF_ERROR(
        assign(field, item, elements.emplace_back()).within(fmt::format("element {}", number)));
  }
  place = std::move(elements);
  return ok_status();
}

std::vector<std::string> split_list(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> parts;
  for (std::string_view part : split(text, ',')) {
    const auto strip = [&](std::string_view characters) {
      const std::size_t first = std::min(part.find_first_not_of(characters), part.size());
      part.remove_prefix(first);
      part = part.substr(0, part.find_last_not_of(characters) + 1);
    };
    strip(" ");
    strip("\"'");
    parts.emplace_back(part);
  }
  return parts;
}

/// Reads what a person types for a number or a flag; text when it is neither.
Json scalar(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  const std::string_view digits = std::string_view(text).substr(text.starts_with('+') ? 1 : 0);
  if (const auto whole = number_in<std::int64_t>(digits)) return *whole;
  if (const auto number = number_in<double>(digits)) return *number;
  return text;
}

/// The value of an override; lists may also be written "1,2,3".
Json override_value(const RecipeField& field, const std::string& text) {
  Recipe any;
  const FieldPlace place = field.place(any);
  const bool texts = std::holds_alternative<std::vector<std::string>*>(place);
  if (std::holds_alternative<std::string*>(place)) return text;
  if (!texts && !std::holds_alternative<std::vector<std::int64_t>*>(place) &&
      !std::holds_alternative<std::vector<double>*>(place)) {
    return scalar(text);
  }
  Json list = Json::array();
  for (const std::string& part : split_list(text))
    list.push_back(texts ? Json(part) : scalar(part));
  return list;
}

class RecipeParser {
 public:
  RecipeParser(std::string_view source, std::string_view folder)
      : source_(source), folder_(folder) {}

  void read_document(std::string_view text) {
    const Status depth = check_toml_depth(text);
    if (!depth.ok()) return unreadable(fmt::format("{}:{}", source_, depth.message()));
    try {
      const toml::table document = toml::parse(text);
      if (!document.contains("schema_version")) {
        error(fmt::format("{}: schema_version is missing; write schema_version = {}", source_,
                          Recipe::kSchema));
      }
      read_table(document, "");
    } catch (const toml::parse_error& e) {
      unreadable(fmt::format("{}: {}", position(e.source()), e.description()));
    }
  }

  void read_json(std::string_view text) {
    const auto document =
        json_nests_within(text) ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json();
    if (!document.is_object()) return error(fmt::format("{}: no JSON object", source_));
    read_object(document, "");
  }

  void read_override(const std::string& text) {
    const std::size_t equals = text.find('=');
    const std::string key = text.substr(0, equals);
    if (equals == std::string::npos || key.empty()) {
      return error(
          fmt::format("command line: '{}' is not an override; write key=value", shortened(text)));
    }
    const RecipeField* field = find_override(key);
    if (field == nullptr) {
      return error(
          fmt::format("command line: unknown key '{}'{}", shortened(key), suggestion(key)));
    }
    overridden_.insert(field->key);
    take(*field, override_value(*field, text.substr(equals + 1)), "command line");
  }

  void read_overrides(std::span<const std::string> overrides) {
    const Recipe before = parsed_.recipe;
    for (const std::string& item : overrides) read_override(item);
    settle_choices(before);
  }

  /// Where both are given, the number of steps decides; on the command line, what was typed does.
  void settle_length() {
    if (overridden_.contains("train.steps") == overridden_.contains("train.epochs")) return;
    TrainerOptions& train = parsed_.recipe.train;
    if (overridden_.contains("train.epochs") && train.epochs > 0) train.steps = 0;
    if (overridden_.contains("train.steps") && train.steps > 0) train.epochs = 0;
  }

  /// Without warm-up, steps with momentum can throw such a model so far that it never learns.
  void settle_clipping() {
    TrainerOptions& t = parsed_.recipe.train;
    if (parsed_.origins.contains("train.clip_norm")) return;
    const auto schedule = parallel::pipeline_schedule(t.strategy.schedule);
    const bool may = t.strategy.pipeline == 1 || (schedule.ok() && !schedule->overlap);
    const bool at_risk = t.optimizer.kind == OptimizerOptions::Kind::kSgd &&
                         t.optimizer.momentum > 0 && t.learning_rate.warmup_steps == 0;
    if (may && at_risk && model::takes_images(parsed_.recipe.model.kind)) t.clip_norm = 1;
  }

  void settle_momentum() {
    TrainerOptions& t = parsed_.recipe.train;
    if (!parsed_.recipe.momentum_correction) return;
    t.passes.push_back(
        parallel::correct_momentum({.momentum = t.optimizer.momentum, .clip_norm = t.clip_norm}));
  }

  /// Momenta that travel are those of copies on all ranks.
  void settle_copies() {
    const Recipe& recipe = parsed_.recipe;
    Strategy& s = parsed_.recipe.train.strategy;
    const bool replicates = parallel::row_of(s.kind).all_reduces;
    if (recipe.freeze_step == 0 || !replicates) return;
    if (s.parameters == Strategy::Parameters::kAuto)
      s.parameters = Strategy::Parameters::kReplicated;
  }

  ParsedRecipe finish() {
    settle_length();
    settle_clipping();
    settle_copies();
    if (parsed_.recipe.open.period) parsed_.recipe.train.strategy.period = kLongestPeriod;
    if (errors_ > kMostErrors) {
      parsed_.errors.push_back(fmt::format("{}: and {} more", source_, errors_ - kMostErrors));
    }
    std::string& path = parsed_.recipe.data.path;
    if (path == kBesideRecipe || path.starts_with(std::string(kBesideRecipe) + "/")) {
      const std::string beside = folder_ + path.substr(kBesideRecipe.size());
      path = std::filesystem::path(beside).lexically_normal().string();
      if (path.size() > 1 && path.ends_with('/')) path.pop_back();
    }
    settle_momentum();
    if (parsed_.errors.empty()) parsed_.recipe.train.recipe_json = to_json(parsed_.recipe);
    return std::move(parsed_);
  }

  void error(std::string message) {
    if (++errors_ <= kMostErrors) parsed_.errors.push_back(std::move(message));
  }
  void unreadable(std::string message) {
    parsed_.readable = false;
    error(std::move(message));
  }

 private:
  std::string position(const toml::source_region& region) const {
    return fmt::format("{}:{}:{}", source_, region.begin.line, region.begin.column);
  }

  void read_table(const toml::table& table, const std::string& prefix) {
    for (const auto& [name, node] : table) {
      const std::string key = prefix + std::string(name.str());
      const RecipeField* field = find_field(key);
      if (field != nullptr) {
        take(*field, to_json(node), position(node.source()));
      } else if (node.is_table() && is_section(key)) {
        read_table(*node.as_table(), key + ".");
      } else if (errors_ >= kMostErrors) {
        ++errors_;
      } else {
        error(fmt::format("{}: unknown {} '{}'{}", position(name.source()),
                          node.is_table() ? "section" : "key", shortened(key), suggestion(key)));
      }
    }
  }

  void read_object(const Json& object, const std::string& prefix) {
    for (const auto& [name, value] : object.items()) {
      const std::string key = prefix + name;
      const RecipeField* field = find_field(key);
      const auto former = std::ranges::find(former_keys(), key, &FormerKey::key);
      if (field != nullptr) {
        take(*field, value, source_);
      } else if (former != former_keys().end()) {
        const bool nothing = value == former->nothing;
        take(*find_field(former->now), nothing ? Json(former->nothing_now) : value, source_);
      } else if (value.is_object() && is_section(key)) {
        read_object(value, key + ".");
      } else {
        error(fmt::format("{}: unknown key '{}'; use the version of Stormo that wrote it", source_,
                          shortened(key)));
      }
    }
  }

  static bool is_section(const std::string& key) {
    return std::any_of(recipe_fields().begin(), recipe_fields().end(),
                       [&](const RecipeField& f) { return f.key.starts_with(key + "."); });
  }

  /// What the file says of a choice goes with it when the overrides make another one.
  void settle_choices(const Recipe& before) {
    const std::vector<UnusedKey> was_unused = unused_keys(before);
    std::vector<std::string> keys;
    for (const UnusedKey& key : unused_keys(parsed_.recipe)) {
      if (overridden_.contains(key.field->key)) continue;
      if (std::ranges::count(was_unused, key.field, &UnusedKey::field) > 0) continue;
      leave_out(*key.field, parsed_.recipe);
      parsed_.origins.erase(std::string(key.field->key));
      keys.push_back(to_string(key));
    }
    if (keys.empty()) return;
    parsed_.left_out = {fmt::format("left out, as nothing uses it now: {}", fmt::join(keys, ", "))};
  }

  void take(const RecipeField& field, const Json& raw, const std::string& where) {
    parsed_.origins.insert_or_assign(std::string(field.key), where);
    if (field.open != nullptr) {
      leave_out(field, parsed_.recipe);
      *field.open(parsed_.recipe) = raw == Json(kAutoWord);
      if (is_open(field, parsed_.recipe)) return;
    }
    const Status assigned = std::visit([&](auto* place) { return assign(field, raw, *place); },
                                       field.place(parsed_.recipe));
    if (!assigned.ok()) error(fmt::format("{}: {}: {}", where, field.key, assigned.message()));
  }

  std::string source_;
  std::string folder_;
  ParsedRecipe parsed_;
  std::set<std::string_view> overridden_;
  std::size_t errors_ = 0;
};

}  // namespace

std::string ParsedRecipe::at(std::string_view key) const {
  const auto origin = origins.find(key);
  return origin == origins.end() ? fmt::format("{}: ", key)
                                 : fmt::format("{}: {}: ", origin->second, key);
}

ParsedRecipe parse_recipe(std::string_view text, std::string_view source, std::string_view folder,
                          std::span<const std::string> overrides) {
  RecipeParser parser(source, folder);
  parser.read_document(text);
  parser.read_overrides(overrides);
  return parser.finish();
}

ParsedRecipe restore_recipe(std::string_view json, std::span<const std::string> overrides) {
  RecipeParser parser("the checkpoint's recipe", ".");
  parser.read_json(json);
  parser.read_overrides(overrides);
  return parser.finish();
}

ParsedRecipe load_recipe(const std::string& path, std::span<const std::string> overrides) {
  const Result<std::string> text = checkpoint::read_text_file(path, kMaxRecipeBytes);
  if (text.ok()) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    return parse_recipe(*text, path, folder.empty() ? "." : folder, overrides);
  }
  RecipeParser parser(path, ".");
  parser.unreadable(fmt::format("recipe {}; the recipes of the repository are in recipes/",
                                text.status().message()));
  parser.read_overrides(overrides);
  return parser.finish();
}

}  // namespace stormo::train
