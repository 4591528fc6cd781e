#include <curl/curl.h>

#include <array>

#include "trireme/core/error.h"
#include "trireme/ps/http.h"

namespace trireme::ps {

namespace {

constexpr size_t kMostBytes = size_t{64} << 20;

/// libcurl's callback for what has come. An answer without end is none.
size_t add_to(char* bytes, size_t, size_t count, void* answer) {
  auto& body = *static_cast<std::string*>(answer);
  if (body.size() + count > kMostBytes) return 0;
  body.append(bytes, count);
  return count;
}

}  // namespace

struct Http::Handle {
  CURL* curl = nullptr;
  curl_slist* headers = nullptr;
  std::array<char, CURL_ERROR_SIZE> reason{};
  std::string body;

  Handle() {
    static const CURLcode once = ::curl_global_init(CURL_GLOBAL_DEFAULT);
    curl = ::curl_easy_init();
    if (once != CURLE_OK || curl == nullptr) throw CommError("libcurl does not start");
    // "Expect": a long request is sent at once, not after a question whether it may be.
    for (const char* header : {"Content-Type: application/json", "Expect:"})
      headers = ::curl_slist_append(headers, header);
    ::curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);  // there are other threads
    ::curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");  // http_proxy is for other networks
    ::curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
    ::curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason.data());
    ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &add_to);
    ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &body);
  }
  ~Handle() {
    ::curl_easy_cleanup(curl);
    ::curl_slist_free_all(headers);
  }
};

bool Http::available() {
  return true;
}

Http::Http() : handle_(std::make_unique<Handle>()) {}
Http::~Http() = default;

Http::Answer Http::post(const std::string& url, const std::string& json,
                        std::chrono::milliseconds time) {
  Handle& handle = *handle_;
  handle.body.clear();
  handle.reason[0] = '\0';
  ::curl_easy_setopt(handle.curl, CURLOPT_URL, url.c_str());
  ::curl_easy_setopt(handle.curl, CURLOPT_POSTFIELDS, json.data());
  ::curl_easy_setopt(handle.curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(json.size()));
  ::curl_easy_setopt(handle.curl, CURLOPT_TIMEOUT_MS, static_cast<long>(time.count()));
  const CURLcode code = ::curl_easy_perform(handle.curl);
  if (code != CURLE_OK)
    throw CommError(handle.reason[0] != '\0' ? handle.reason.data() : ::curl_easy_strerror(code));
  long status = 0;
  ::curl_easy_getinfo(handle.curl, CURLINFO_RESPONSE_CODE, &status);
  return {status, std::move(handle.body)};
}

}  // namespace trireme::ps
