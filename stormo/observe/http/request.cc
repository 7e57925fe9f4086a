#include <stormo/observe/http/request.h>

#include <algorithm>
#include <utility>

#include <stormo/base/text.h>
#include <stormo/observe/http/header_text.h>

namespace stormo::observe {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

Status bad(const char* what) { return invalid_argument(what); }

/// Characters of a method or of a header's name (RFC 9110, token).
bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

bool is_visible(char c) { return c > ' ' && c < '\x7f'; }

/// Of a header's value: no control characters but tabs.
bool is_value(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return c == '\t' || (static_cast<unsigned char>(c) >= ' ' && c != '\x7f');
  });
}

Result<HttpRequest> parse_first_line(std::string_view line) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return bad("no request line");
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(method)) return bad("no method");
  if (!target.starts_with('/') || !std::ranges::all_of(target, is_visible)) return bad("no path");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return bad("no HTTP/1.1");
  return HttpRequest{.method = std::string(method),
                     .path = std::string(target.substr(0, target.find('?')))};
}

/// Sets what may be given once.
Status set_once(std::string& field, std::string_view value) {
  if (!field.empty()) return bad("a header that comes twice");
  if (value.empty()) return bad("a header without a value");
  field = value;
  return {};
}

Status add_header(HttpRequest& request, std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) return bad("no header");
  const std::string name = lower_case(line.substr(0, colon));
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (!is_value(value)) return bad("a header with control characters");
  if (name == "host") return set_once(request.host, value);
  if (name == "authorization") return set_once(request.authorization, value);
  if (name == "accept") {
    request.accept += (request.accept.empty() ? "" : ",") + std::string(value);
  } else if (name == "origin") {
    request.has_origin = true;
  } else if (name == "transfer-encoding" || (name == "content-length" && value != "0")) {
    return bad("a request with a body");
  }
  return {};
}

}  // namespace

std::optional<std::size_t> request_head(std::string_view bytes) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  const std::size_t end = bytes.find(kEnd);
  return end == std::string_view::npos ? std::nullopt : std::optional(end + kEnd.size());
}

Result<HttpRequest> parse_request(std::string_view head) {
  std::size_t end = head.find(kLineEnd);
  if (end == std::string_view::npos) return bad("no line");
  const std::string_view first = head.substr(0, end);
  STORMO_ASSIGN_OR_RETURN(HttpRequest request, parse_first_line(first));
  for (head.remove_prefix(end + kLineEnd.size());; head.remove_prefix(end + kLineEnd.size())) {
    end = head.find(kLineEnd);
    if (end == std::string_view::npos) return bad("a line without an end");
    if (end == 0) break;
    STORMO_RETURN_IF_ERROR(add_header(request, head.substr(0, end)));
  }
  if (request.host.empty() && first.ends_with("HTTP/1.1")) return bad("no Host");
  return request;
}

}  // namespace stormo::observe
