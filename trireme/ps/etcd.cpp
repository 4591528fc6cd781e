#include "trireme/ps/etcd.h"

#include <openssl/evp.h>

#include <algorithm>
#include <string_view>

#include "trireme/core/env.h"

namespace trireme::ps {

namespace {

using core::Json;

/// For one host. An etcd that is well answers in milliseconds.
constexpr std::chrono::milliseconds kAnswerTime{2000};

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // OpenSSL ends it with a zero
  ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                    reinterpret_cast<const unsigned char*>(bytes.data()),
                    static_cast<int>(bytes.size()));
  text.pop_back();
  return text;
}

std::string from_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int count = ::EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                      reinterpret_cast<const unsigned char*>(text.data()),
                                      static_cast<int>(text.size()));
  if (count < 0) throw CommError("etcd answers with a text that is not base64");
  const auto padding = std::count(text.begin(), text.end(), '=');
  bytes.resize(bytes.size() - std::min(bytes.size(), static_cast<size_t>(padding)));
  return bytes;
}

// Fields with their default value, 0 or "" or false, are left out of an answer.

const Json& field(const Json& object, const char* name) {
  static const Json none;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() ? none : *found;
}

/// 64-bit numbers are texts: JavaScript has none.
int64_t number_in(const Json& object, const char* name) {
  const Json& value = field(object, name);
  if (value.is_number_integer()) return value.get<int64_t>();
  return value.is_string() ? core::parse_int(value.get<std::string>()).value_or(0) : 0;
}

std::string bytes_in(const Json& object, const char* name) {
  const Json& value = field(object, name);
  return value.is_string() ? from_base64(value.get<std::string>()) : "";
}

Json key_range(const EtcdKeys& keys) {
  return {{"key", to_base64(keys.begin)}, {"range_end", to_base64(keys.end)}};
}

}  // namespace

Etcd::Etcd(std::vector<net::Address> hosts) : hosts_(std::move(hosts)) {
  core::check(!hosts_.empty(), "Etcd: give at least one host");
  for (const auto& host : hosts_) names_ += (names_.empty() ? "" : ", ") + host.to_string();
}

Json Etcd::ask(const std::string& what, const Json& request) {
  const std::string text = request.dump();
  std::string reason;
  for (size_t tried = 0; tried < hosts_.size(); ++tried, host_ = (host_ + 1) % hosts_.size()) {
    const std::string host = hosts_[host_].to_string();
    Http::Answer answer;
    try {
      answer = http_.post("http://" + host + "/v3/" + what, text, kAnswerTime);
    } catch (const CommError& error) {
      reason = error.what();
      continue;
    }
    Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    const Json& inner = field(json, "result").is_null() ? json : json["result"];  // of a stream
    if (answer.status == 200 && field(inner, "header").is_object()) return inner;
    const Json& message = field(json, "message");
    const std::string words = message.is_string() ? message.get<std::string>() : "no etcd's answer";
    if (answer.status < 500)
      throw CommError(
          fmt::format("etcd at {} refuses {} with HTTP status {} ({}); it must be etcd "
                      "3.4 or newer, with its gateway on that port",
                      host, what, answer.status, words));
    reason = words;  // such as: it has no leader now
  }
  throw EtcdAway(
      fmt::format("no etcd answers {} at {} ({}): start it, or name the place where it is", what,
                  names_, reason));
}

bool Etcd::commit(const EtcdChange& change) {
  Json operations = Json::array();
  for (const auto& put : change.puts)
    operations.push_back({{"request_put",
                           {{"key", to_base64(put.key)},
                            {"value", to_base64(put.value)},
                            {"lease", std::to_string(put.lease)}}}});
  for (const auto& keys : change.removals)
    operations.push_back({{"request_delete_range", key_range(keys)}});
  const Json condition = {{"key", to_base64(change.key)},
                          {"target", "CREATE"},
                          {"result", "EQUAL"},
                          {"create_revision", std::to_string(change.created)}};
  const Json answer =
      ask("kv/txn", {{"compare", Json::array({condition})}, {"success", operations}});
  return field(answer, "succeeded") == true;
}

std::vector<EtcdEntry> Etcd::range(const Json& request) {
  std::vector<EtcdEntry> entries;
  const Json answer = ask("kv/range", request);
  for (const Json& each : field(answer, "kvs"))
    entries.push_back({.key = bytes_in(each, "key"),
                       .value = bytes_in(each, "value"),
                       .lease = number_in(each, "lease"),
                       .created = number_in(each, "create_revision")});
  return entries;
}

std::vector<EtcdEntry> Etcd::read(const EtcdKeys& keys, int64_t most) {
  Json request = key_range(keys);
  request["limit"] = most;
  return range(request);
}

std::optional<EtcdEntry> Etcd::read(const std::string& key) {
  auto entries = range({{"key", to_base64(key)}});
  return entries.empty() ? std::nullopt : std::optional(std::move(entries.front()));
}

std::optional<EtcdEntry> Etcd::read_last(const EtcdKeys& keys) {
  Json request = key_range(keys);
  request["limit"] = 1;
  request["sort_order"] = "DESCEND";
  request["sort_target"] = "KEY";
  auto entries = range(request);
  return entries.empty() ? std::nullopt : std::optional(std::move(entries.front()));
}

Etcd::Lease Etcd::grant(std::chrono::seconds time) {
  const Json answer = ask("lease/grant", {{"TTL", time.count()}});
  return {number_in(answer, "ID"), std::chrono::seconds(number_in(answer, "TTL"))};
}

bool Etcd::keep_alive(int64_t lease) {
  return number_in(ask("lease/keepalive", {{"ID", std::to_string(lease)}}), "TTL") > 0;
}

void Etcd::revoke(int64_t lease) {
  ask("lease/revoke", {{"ID", std::to_string(lease)}});
}

}  // namespace trireme::ps
