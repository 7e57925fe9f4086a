#include <stormo/train/prepare/preprocessing.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <stormo/base/json_depth.h>

namespace stormo::train {
namespace {

using Json = nlohmann::json;

constexpr const char* kHex = "hex";
constexpr const char* kBytes = "bytes";

Status corrupt(const std::string& what) {
  return {Code::kCorrupt, "the preprocessing of the checkpoint has " + what};
}

bool is_utf8(const std::string& text) {
  return data::Vocabulary::characters(text).ok() || text.empty();
}

/// Names of folders and words of texts may be any bytes, JSON holds UTF-8 only.
Json json_of_text(const std::string& text) {
  if (is_utf8(text)) return text;
  std::string hex;
  for (const char c : text) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return {{kHex, hex}};
}

std::optional<std::string> parse_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || !value.contains(kHex) || !value[kHex].is_string()) return std::nullopt;
  const auto& hex = value[kHex].get_ref<const std::string&>();
  std::string text;
  for (std::size_t at = 0; at < hex.size(); at += 2) {
    const char* const end = hex.data() + std::min(at + 2, hex.size());
    unsigned byte = 0;
    const auto [stop, failed] = std::from_chars(hex.data() + at, end, byte, 16);
    if (failed != std::errc() || stop != end || end - (hex.data() + at) != 2) return std::nullopt;
    text.push_back(static_cast<char>(byte));
  }
  return text;
}

Json json_of_texts(const std::vector<std::string>& texts) {
  Json list = Json::array();
  for (const std::string& text : texts) list.push_back(json_of_text(text));
  return list;
}

/// A list of different texts.
Result<std::vector<std::string>> parse_texts(const Json& list, const char* what) {
  const Status wrong = corrupt(fmt::format("{} that are no list of different texts", what));
  if (!list.is_array()) return wrong;
  std::vector<std::string> texts;
  for (const Json& item : list) {
    std::optional<std::string> text = parse_text(item);
    if (!text) return wrong;
    texts.push_back(std::move(*text));
  }
  const std::set<std::string_view> distinct(texts.begin(), texts.end());
  if (distinct.size() != texts.size()) return wrong;
  return texts;
}

/// The characters in the order of their ids, as one text.
std::string characters_of(const data::Vocabulary& vocabulary) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(vocabulary.size()));
  std::iota(ids.begin(), ids.end(), std::int64_t{0});
  return vocabulary.decode(ids);
}

Json json_of_vocabulary(const data::Vocabulary& vocabulary) {
  if (vocabulary == data::Vocabulary::bytes()) return kBytes;
  return {{"characters", characters_of(vocabulary)}};
}

Status parse_vocabulary(const Json& value, Preprocessing& p) {
  if (value == kBytes) {
    p.vocabulary = data::Vocabulary::bytes();
    return {};
  }
  if (!value.is_object() || !value.contains("characters") || !value["characters"].is_string()) {
    return corrupt("a vocabulary that is neither bytes nor characters");
  }
  Result<data::Vocabulary> vocabulary =
      data::Vocabulary::characters(value["characters"].get_ref<const std::string&>());
  if (!vocabulary.ok()) return corrupt("a vocabulary without characters");
  p.vocabulary = std::move(vocabulary).value();
  return {};
}

Status parse_classes(const Json& value, Preprocessing& p) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() <= INT32_MAX) {
    p.classes = data::Classes::numbers(value.get<std::int64_t>());
    return {};
  }
  STORMO_ASSIGN_OR_RETURN(std::vector<std::string> names, parse_texts(value, "classes"));
  if (!std::ranges::is_sorted(names)) return corrupt("classes that are not in ascending order");
  p.classes = data::Classes::named(std::move(names));
  return {};
}

Status parse_input(const Json& value, Preprocessing& p) {
  if (!value.is_array()) return corrupt("a shape of samples that is no list");
  for (const Json& size : value) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > INT32_MAX) {
      return corrupt("a shape of samples that is no list of sizes");
    }
    p.input.push_back(size.get<std::int64_t>());
  }
  return {};
}

Status parse_words(const Json& value, Preprocessing& p) {
  if (!value.is_object() || !value.contains("pairs") || !value["pairs"].is_boolean() ||
      !value.contains("list")) {
    return corrupt("words without a list");
  }
  STORMO_ASSIGN_OR_RETURN(std::vector<std::string> words, parse_texts(value["list"], "words"));
  p.words = data::WordVocabulary::listed(std::move(words), value["pairs"].get<bool>());
  return {};
}

Json json_of(const Preprocessing::Scale& scale) {
  return {{"mean", scale.mean}, {"stddev", scale.stddev}};
}

Status parse_scale(const Json& value, Preprocessing::Scale& scale) {
  const auto take = [&](const char* key, double& number) {
    const auto found = value.find(key);
    if (found == value.end() || !found->is_number()) return false;
    number = found->get<double>();
    return std::isfinite(number);
  };
  const bool taken = value.is_object() && take("mean", scale.mean) && take("stddev", scale.stddev);
  return taken && scale.stddev > 0 ? Status() : corrupt("a scale without mean and stddev");
}

Status parse_scales(const Json& value, Preprocessing& p) {
  if (!value.is_array() || value.size() != p.columns.size()) {
    return corrupt("another number of scales than columns");
  }
  for (const Json& scale : value) {
    STORMO_RETURN_IF_ERROR(parse_scale(scale, p.scales.emplace_back()));
  }
  return {};
}

Status parse_fills(const Json& value, Preprocessing& p) {
  if (!value.is_array() || value.size() != p.columns.size()) {
    return corrupt("another number of fills than columns");
  }
  for (const Json& fill : value) {
    if (!fill.is_number() || !std::isfinite(fill.get<double>()))
      return corrupt("a fill that is no number");
    p.fills.push_back(fill.get<double>());
  }
  return {};
}

bool has_column(const Preprocessing& p, const std::string& name) {
  return std::ranges::find(p.columns, name) != p.columns.end();
}

Status parse_indicators(const Json& value, Preprocessing& p) {
  STORMO_ASSIGN_OR_RETURN(p.indicators, parse_texts(value, "indicators"));
  const bool known =
      std::ranges::all_of(p.indicators, [&](const auto& name) { return has_column(p, name); });
  return known ? Status() : corrupt("an indicator of no column");
}

/// A list of pairs, since names of columns may be any bytes.
Status parse_categories(const Json& value, Preprocessing& p) {
  const Status wrong = corrupt("categories that are no list of a column and its texts");
  if (!value.is_array()) return wrong;
  for (const Json& pair : value) {
    if (!pair.is_array() || pair.size() != 2) return wrong;
    const std::optional<std::string> column = parse_text(pair[0]);
    if (!column || !has_column(p, *column) || p.categories.contains(*column)) return wrong;
    STORMO_ASSIGN_OR_RETURN(std::vector<std::string> texts, parse_texts(pair[1], "categories"));
    if (texts.empty() || !std::ranges::is_sorted(texts)) return wrong;
    p.categories.emplace(*column, std::move(texts));
  }
  return {};
}

}  // namespace

std::int64_t Preprocessing::features() const {
  std::size_t count = columns.size() + indicators.size();
  for (const auto& [column, texts] : categories) count += texts.size() - 1;
  return static_cast<std::int64_t>(count);
}

std::string to_json(const Preprocessing& p) {
  Json object = {{"input", p.input}};
  if (p.classes.names().empty()) {
    object["classes"] = p.classes.size();
  } else {
    object["classes"] = json_of_texts(p.classes.names());
  }
  if (p.vocabulary) object["vocabulary"] = json_of_vocabulary(*p.vocabulary);
  if (p.words)
    object["words"] = {{"pairs", p.words->pairs()}, {"list", json_of_texts(p.words->words())}};
  if (!p.columns.empty()) object["columns"] = json_of_texts(p.columns);
  for (const Preprocessing::Scale& scale : p.scales) object["scales"].push_back(json_of(scale));
  if (!p.fills.empty()) object["fills"] = p.fills;
  if (!p.indicators.empty()) object["indicators"] = json_of_texts(p.indicators);
  for (const auto& [column, texts] : p.categories) {
    object["categories"].push_back({json_of_text(column), json_of_texts(texts)});
  }
  if (p.target != Preprocessing::Scale{}) object["target"] = json_of(p.target);
  return object.dump();
}

Result<Preprocessing> parse_preprocessing(std::string_view text) {
  const Json object =
      json_nests_within(text) ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json();
  if (!object.is_object()) return corrupt("no JSON object");
  Preprocessing p;
  const auto take = [&](const char* key, Status (*parse)(const Json&, Preprocessing&)) {
    const auto found = object.find(key);
    return found == object.end() ? Status() : parse(*found, p);
  };
  STORMO_RETURN_IF_ERROR(take("input", parse_input));
  STORMO_RETURN_IF_ERROR(take("classes", parse_classes));
  STORMO_RETURN_IF_ERROR(take("vocabulary", parse_vocabulary));
  STORMO_RETURN_IF_ERROR(take("words", parse_words));
  if (object.contains("columns")) {
    STORMO_ASSIGN_OR_RETURN(p.columns, parse_texts(object["columns"], "columns"));
  }
  STORMO_RETURN_IF_ERROR(take("scales", parse_scales));
  STORMO_RETURN_IF_ERROR(take("fills", parse_fills));
  STORMO_RETURN_IF_ERROR(take("indicators", parse_indicators));
  STORMO_RETURN_IF_ERROR(take("categories", parse_categories));
  if (object.contains("target")) STORMO_RETURN_IF_ERROR(parse_scale(object["target"], p.target));
  return p;
}

}  // namespace stormo::train
