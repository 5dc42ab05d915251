// Fuzzes the replies of a Hugging Face hub and of an S3 store. In the input, the first byte of each reply chooses its
// status, and the rest is its body and its headers. The HTTP client itself is not tested (the linker replaces
// HttpClient::send). A refusal must be one of specdec's own errors. An accepted reply must never lead to another
// server.
#include <array>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "net/hub_upload.h"
#include "net/s3.h"
#include "tests/fuzz/scratch_file.h"

namespace {

using namespace specdec;
using namespace specdec::net;
using fuzz::require;

std::string_view rest;  // the part of the input that no reply has used yet

HttpReply next_reply() {
  static constexpr std::array<long, 8> kStatus = {200, 200, 200, 200, 206, 302, 404, 412};
  HttpReply reply;
  reply.status = rest.empty() ? 200 : kStatus[static_cast<unsigned char>(rest[0]) % kStatus.size()];
  if (!rest.empty()) rest.remove_prefix(1);
  const size_t end = std::min(rest.find('\x01'), rest.size());
  reply.body = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  for (const char* name : {"etag", "content-length", "x-linked-etag", "x-linked-size", "x-error-code", "content-range"})
    reply.headers[name] = reply.body.substr(0, 80);
  return reply;
}

template <class F>
void try_it(F ask) {
  try {
    ask();
  } catch (const Error& e) {
    require(e.kind() != ErrorKind::kInternal && e.kind() != ErrorKind::kIo);
  }
}

void ask_hub() {
  static const HubName hub{"org", "name", "main"};
  static const HubOptions options = [] {
    HubOptions o;
    o.endpoint = "https://hub.example";
    o.token = "hf_secret";
    return o;
  }();
  static const std::string commit(40, 'a'), digest(64, 'b');
  HubRepository repository(hub, options, HubRepository::Access::kWrite);
  try_it([&] { repository.is_private(); });
  try_it([&] {
    for (const auto& [name, at] : repository.refs().branches) require(at.size() == 40);
  });
  try_it([&] {
    for (const auto& [path, file] : repository.tree(commit))
      require(!path.empty() && path.front() != '/' && path.find("../") != 0);
  });
  try_it([&] { repository.large_files("main", {{"a.bin", {5, "bytes"}}}); });
  try_it([&] {
    if (const auto upload = repository.ask_upload("main", digest, 5)) {
      require(keeps_secrets(upload->url));
      for (const std::string& part : upload->parts) require(keeps_secrets(part));
      require(upload->verify.empty() ||
              origin_of(upload->verify) == origin_of(options.endpoint));  // this request carries the token
    }
  });
  try_it([&] { repository.commit("main", commit, "s", "d", {}); });
  try_it([&] { repository.describe(commit, "config.json"); });
}

void ask_s3() {
  S3Options options;
  options.access_key = "x";
  options.secret_key = "x";
  S3Client client(parse_s3("s3://bucket/prefix"), options);
  try_it([&] { client.get("refs/main", 1 << 16); });
  try_it([&] { client.size("a"); });
  try_it([&] { client.put("a", "b", true); });
}

}  // namespace

// SPECDEC_WRAPPED_SEND is a mangled C++ name already, so this function needs C linkage although it returns an object.
#pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
extern "C" HttpReply SPECDEC_WRAPPED_SEND(HttpClient*, const std::function<HttpRequest()>& make, const Backoff&) {
  const HttpRequest request = make();
  HttpReply reply = next_reply();
  if ((reply.status == 200 || reply.status == 206) && request.on_body) {
    const std::string body = std::move(reply.body);
    reply.body.clear();
    request.on_body(reply, body);
  }
  return reply;
}

std::vector<std::string> fuzz_seeds() {
  const std::string commit(40, 'a'), digest(64, 'b');
  return {
      "h0{\"private\":true}\x01"
      "0{\"branches\":[{\"name\":\"main\",\"targetCommit\":\"" +
          commit +
          "\"}],\"tags\":[]}\x01"
          "0{\"sha\":\"" +
          commit + "\",\"siblings\":[{\"rfilename\":\"a/b.json\",\"size\":3,\"blobId\":\"" + commit +
          "\"}]}\x01"
          "0{\"files\":[{\"path\":\"a.bin\",\"uploadMode\":\"lfs\"}]}\x01"
          "0{\"objects\":[{\"oid\":\"" +
          digest +
          "\",\"size\":5,\"actions\":{\"upload\":{\"href\":\"https://s3.example/"
          "x\",\"header\":{\"chunk_size\":\"5\",\"1\":\"https://s3.example/1\"}}}}]}\x01"
          "0{\"commitOid\":\"" +
          commit + "\"}",
      "s6<Error><Code>NoSuchKey</Code></Error>\x01"
      "012\x01"
      "7<Code>x</Code>"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  rest = std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1);
  data[0] % 2 ? ask_s3() : ask_hub();
  return 0;
}
