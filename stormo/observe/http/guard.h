#pragma once

#include <optional>
#include <string>

#include <stormo/observe/http/request.h>
#include <stormo/observe/http/response.h>

namespace stormo::observe {

/// Who may read the pages of a server.
struct HttpGuard {
  /// That every request must have: hexadecimal digits with small letters; empty: none.
  std::string token{};
  std::string host_name{};  ///< of the server, as it was given to it; may be numeric
};

/// The answer to a request that may not read pages; nothing: it may. Without a token, the server is
/// for this host alone: a page of another site, which a browser on this host shows, is kept out by
/// the name that it has asked for (DNS rebinding).
std::optional<HttpResponse> refusal_of(const HttpRequest& request, const HttpGuard& guard);

}  // namespace stormo::observe
