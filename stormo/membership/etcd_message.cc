#include <stormo/membership/etcd_message.h>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <stormo/base/json_depth.h>
#include <stormo/base/text.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace stormo::membership {
namespace {

using nlohmann::json;

std::string to_base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // OpenSSL ends it with a zero
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     static_cast<int>(text.size()));
  if (length != static_cast<int>(bytes.size())) return std::nullopt;
  for (int i = 0; i < 2 && text.ends_with('='); ++i) {  // OpenSSL counts the padding, too
    text.remove_suffix(1);
    bytes.pop_back();
  }
  return bytes;
}

json parse(std::string_view text) {
  if (!json_nests_within(text)) return {};
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Status not_of_etcd(std::string_view what) {
  return Status(Code::kRefused, fmt::format("what it answers is not etcd's: {}", what));
}

/// The answer to a request that etcd has carried out: it says at which revision.
Result<json> parse_success(std::string_view text) {
  json answer = parse(text);
  if (answer.is_object() && answer.contains("header") && answer["header"].is_object() &&
      answer["header"].contains("revision")) {
    return answer;
  }
  return not_of_etcd("no header with a revision");
}

/// Fields with the value of their type's default are left out, and integers of 64 bits are texts.
Result<EtcdKey> key_in(const json& range) {
  if (!range.is_object()) return not_of_etcd("no range of keys");
  if (!range.contains("kvs")) return EtcdKey{};
  const json& keys = range["kvs"];
  if (!keys.is_array() || keys.size() != 1 || !keys[0].is_object()) {
    return not_of_etcd("not one key");
  }
  const auto text_of = [&](const char* field) {
    const auto at = keys[0].find(field);
    return at != keys[0].end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  const auto version = number_in<std::uint64_t>(text_of("version"));
  auto value = from_base64(text_of("value"));
  if (!version || *version == 0) return not_of_etcd("a key without a version");
  if (!value) return not_of_etcd("a value that is not base64");
  return EtcdKey{.version = *version, .value = *std::move(value)};
}

}  // namespace

std::string etcd_read(std::string_view key) { return json{{"key", to_base64(key)}}.dump(); }

Result<EtcdKey> etcd_read_answer(std::string_view text) {
  STORMO_ASSIGN_OR_RETURN(const json answer, parse_success(text));
  return key_in(answer);
}

std::string etcd_change(std::string_view key, std::uint64_t version, std::string_view value) {
  const std::string name = to_base64(key);
  const json compare = {{"key", name},
                        {"target", "VERSION"},
                        {"result", "EQUAL"},
                        {"version", std::to_string(version)}};
  const json put = {{"request_put", {{"key", name}, {"value", to_base64(value)}}}};
  const json range = {{"request_range", {{"key", name}}}};
  return json{{"compare", json::array({compare})},
              {"success", json::array({put})},
              {"failure", json::array({range})}}
      .dump();
}

Result<EtcdChange> etcd_change_answer(std::string_view text) {
  STORMO_ASSIGN_OR_RETURN(const json answer, parse_success(text));
  const auto succeeded = answer.find("succeeded");
  if (succeeded != answer.end() && succeeded->is_boolean() && succeeded->get<bool>())
    return EtcdChange{.done = true};
  const auto responses = answer.find("responses");
  if (responses == answer.end() || !responses->is_array() || responses->size() != 1 ||
      !(*responses)[0].is_object() || !(*responses)[0].contains("response_range")) {
    return not_of_etcd("neither a change nor a key");
  }
  STORMO_ASSIGN_OR_RETURN(EtcdKey present, key_in((*responses)[0]["response_range"]));
  return EtcdChange{.present = std::move(present)};
}

std::string etcd_login(std::string_view user, std::string_view password) {
  // what is not UTF-8 is no user of etcd's
  return json{{"name", user}, {"password", password}}.dump(-1, ' ', false,
                                                           json::error_handler_t::replace);
}

Result<std::string> etcd_login_answer(std::string_view body) {
  STORMO_ASSIGN_OR_RETURN(const json answer, parse_success(body));
  const auto token = answer.find("token");
  const bool is_text = token != answer.end() && token->is_string();
  std::string text = is_text ? token->get<std::string>() : std::string();
  // it becomes a header
  const auto is_plain = [](unsigned char c) { return c > ' ' && c < 0x7f; };
  if (text.empty() || !std::ranges::all_of(text, is_plain)) return not_of_etcd("no token");
  return text;
}

std::string etcd_error(std::string_view text) {
  const json answer = parse(text);
  if (!answer.is_object() || !answer.contains("code")) return {};
  const auto error = answer.find("error");
  return error != answer.end() && error->is_string() ? error->get<std::string>() : std::string();
}

}  // namespace stormo::membership
