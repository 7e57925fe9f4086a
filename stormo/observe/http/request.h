#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::observe {

/// What a page may depend on.
struct HttpRequest {
  std::string method{};
  std::string path{};           ///< "/metrics", without what follows a '?'
  std::string host{};           ///< as sent, with a port
  std::string authorization{};  ///< empty: none
  std::string accept{};         ///< several headers joined by commas
  bool has_origin = false;      ///< a page of another site asks
};

/// Longest head of a request.
inline constexpr std::size_t kMaxRequestBytes = 8192;

/// Length of the head that `bytes` begin with, with its empty line; nothing: it is not whole yet.
std::optional<std::size_t> request_head(std::string_view bytes);

/// A request of HTTP/1.0 or 1.1 without a body, from its head. kInvalidArgument for anything else.
Result<HttpRequest> parse_request(std::string_view head);

}  // namespace stormo::observe
