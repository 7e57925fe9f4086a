#include <stormo/http/http_post.h>

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>

namespace stormo::http {
namespace {

/// A record in base64, and more than what etcd says about it.
constexpr std::size_t kMaxAnswerBytes = std::size_t{4} << 20;
constexpr long kLongestMs = 1'000'000'000;
constexpr curl_off_t kLongestWaitS = 86'400;

using Easy = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
using Headers = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

std::size_t take_answer(const char* bytes, std::size_t /*one*/, std::size_t count, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (text.size() + count > kMaxAnswerBytes) return 0;  // libcurl gives up then
  text.append(bytes, count);
  return count;
}

/// Called about once a second; what is not 0 ends the transfer.
int look_at_given_up(void* given_up, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<const std::atomic<bool>*>(given_up) ? 1 : 0;
}

Headers headers_of(const HttpRequest& request) {
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  list = curl_slist_append(list, "Expect:");  // or a large body waits a second for a go-ahead
  if (!request.authorization.empty()) {
    list = curl_slist_append(list, ("Authorization: " + request.authorization).c_str());
  }
  for (const std::string& header : request.headers) list = curl_slist_append(list, header.c_str());
  return {list, &curl_slist_free_all};
}

Status status_of(CURL* easy, CURLcode code, std::string_view details) {
  if (code == CURLE_OK) return {};
  const std::string text(details.empty() ? curl_easy_strerror(code) : details);
  switch (code) {
    case CURLE_ABORTED_BY_CALLBACK: return Status(Code::kCancelled, "given up");
    case CURLE_OPERATION_TIMEDOUT: return Status(Code::kDeadlineExceeded, text);
    case CURLE_COULDNT_CONNECT: {
      long error = 0;
      curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &error);
      if (error == 0) return io_error(text);
      errno = static_cast<int>(error);
      return errno_error("connect");
    }
    case CURLE_UNSUPPORTED_PROTOCOL:  // an answer without a header
    case CURLE_WEIRD_SERVER_REPLY: return Status(Code::kRefused, text);
    case CURLE_WRITE_ERROR:
      return Status(Code::kRefused, fmt::format("it answers more than {} bytes", kMaxAnswerBytes));
    default: return io_error(text);
  }
}

}  // namespace

bool can_http_post() { return true; }

HttpAnswer http_post(const HttpRequest& request, Duration at_most,
                     const std::atomic<bool>* given_up) {
  static const CURLcode kStarted = curl_global_init(CURL_GLOBAL_DEFAULT);
  const Easy easy(kStarted == CURLE_OK ? curl_easy_init() : nullptr, &curl_easy_cleanup);
  if (!easy) return {.exchange = Status(Code::kExhausted, "libcurl does not start")};
  const Headers headers = headers_of(request);
  const auto at_most_ms = std::chrono::ceil<std::chrono::milliseconds>(at_most).count();
  HttpAnswer answer;
  std::array<char, CURL_ERROR_SIZE> details{};
  const auto set = [&](CURLoption option, auto value) {
    curl_easy_setopt(easy.get(), option, value);
  };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_PROXY, "");  // also not that of the environment
  set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TIMEOUT_MS, std::clamp(static_cast<long>(at_most_ms), 1L, kLongestMs));
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_POSTFIELDS, request.body.c_str());
  set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  set(CURLOPT_WRITEFUNCTION, &take_answer);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&answer.body));
  set(CURLOPT_ERRORBUFFER, details.data());
  if (given_up != nullptr) {
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &look_at_given_up);
    set(CURLOPT_XFERINFODATA, const_cast<void*>(static_cast<const void*>(given_up)));
  }
  const CURLcode done = curl_easy_perform(easy.get());
  answer.exchange = status_of(easy.get(), done, details.data());
  long sent_bytes = 0, code = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_REQUEST_SIZE, &sent_bytes);
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &code);
  curl_off_t wait_s = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RETRY_AFTER, &wait_s);
  answer.retry_after = std::chrono::seconds(std::clamp<curl_off_t>(wait_s, 0, kLongestWaitS));
  answer.was_sent = sent_bytes > 0;
  answer.code = static_cast<int>(code);
  return answer;
}

}  // namespace stormo::http
