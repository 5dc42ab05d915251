// Tests the environment variables and file names of hub.cpp. tests/e2e/hub tests the rest, with the program and a hub.
#include "net/hub.h"

#include <mutex>

#include "base/hub_cache.h"
#include "base/sha256.h"
#include "net/hub_blob.h"
#include "tests/base/scratch.h"
#include "tests/net/toy_server.h"

namespace specdec::net {
namespace {

using testing::expect_error;

class HubEnvironment : public ::testing::Test {
 protected:
  HubEnvironment() {
    for (const char* name : kNames) ::unsetenv(name);
    set("HF_HOME", dir.root().string());
  }
  ~HubEnvironment() override {
    for (const char* name : kNames) ::unsetenv(name);
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
  static constexpr const char* kNames[] = {"HF_ENDPOINT",
                                           "HF_HOME",
                                           "HF_TOKEN",
                                           "HUGGING_FACE_HUB_TOKEN",
                                           "HF_TOKEN_PATH",
                                           "HF_HUB_DISABLE_IMPLICIT_TOKEN",
                                           "HF_HUB_OFFLINE",
                                           "TRANSFORMERS_OFFLINE",
                                           "HF_HUB_ETAG_TIMEOUT",
                                           "HF_HUB_DOWNLOAD_TIMEOUT"};
  testing::Scratch dir;
};

TEST_F(HubEnvironment, EndpointSwitchesAndTimes) {
  EXPECT_EQ(hub_options_from_environment().endpoint, "https://huggingface.co");
  EXPECT_FALSE(hub_options_from_environment().offline);
  set("HF_ENDPOINT", "https://mirror/api/");
  set("HF_HUB_DOWNLOAD_TIMEOUT", "30");
  EXPECT_EQ(hub_options_from_environment().endpoint, "https://mirror/api");
  EXPECT_EQ(hub_options_from_environment().stall_timeout_s, 30);
  set("TRANSFORMERS_OFFLINE", "True");
  EXPECT_TRUE(hub_options_from_environment().offline);
  set("HF_HUB_OFFLINE", "0");  // HF_HUB_OFFLINE has precedence over TRANSFORMERS_OFFLINE, as in huggingface_hub
  EXPECT_FALSE(hub_options_from_environment().offline);
  for (const char* bad : {"0", "-1", "ten", "1e9", "nan"}) {
    set("HF_HUB_ETAG_TIMEOUT", bad);
    expect_error(ErrorKind::kUsage, {"HF_HUB_ETAG_TIMEOUT"}, [] { hub_options_from_environment(); });
  }
}

TEST_F(HubEnvironment, TokensInTheirOrder) {
  EXPECT_EQ(hub_options_from_environment().token.reveal() + hub_options_from_environment().token_source, "");
  testing::put(dir / "token", "of-home\n");
  EXPECT_EQ(hub_options_from_environment().token.reveal(), "of-home");
  EXPECT_EQ(hub_options_from_environment().token_source, (dir / "token").string());
  testing::put(dir / "mine", " of-file \r\n");
  set("HF_TOKEN_PATH", (dir / "mine").string());
  EXPECT_EQ(hub_options_from_environment().token.reveal(), "of-file");
  set("HUGGING_FACE_HUB_TOKEN", "old-name");
  EXPECT_EQ(hub_options_from_environment().token.reveal(), "old-name");
  set("HF_TOKEN", "of-variable");
  EXPECT_EQ(hub_options_from_environment().token.reveal(), "of-variable");
  EXPECT_EQ(hub_options_from_environment().token_source, "HF_TOKEN");
  set("HF_TOKEN", "a\nb");
  const std::string message = testing::error_of([] { hub_options_from_environment(); }, ErrorKind::kConfig);
  EXPECT_EQ(message.find("a\nb"), std::string::npos);
  set("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
  EXPECT_EQ(hub_options_from_environment().token.reveal(), "");
}

TEST(Hub, ModelFiles) {
  for (const char* wanted :
       {"config.json", "tokenizer.model", "chat_template.jinja", "model-00001-of-00002.safetensors", "specdec.json"})
    EXPECT_TRUE(is_model_file(wanted)) << wanted;
  for (const char* unwanted : {"pytorch_model.bin", "modeling.py", "README.md", "onnx/model.safetensors",
                               "../x.safetensors", ".safetensors", "training_args.bin", "a b.safetensors", ""})
    EXPECT_FALSE(is_model_file(unwanted)) << unwanted;
}

// A mirror redirects its clients to the hub. Size and digest come from the hub, the length of the redirect's own body
// is never taken for the file's size, and the token is sent only to the mirror.
TEST(Hub, AMirrorMayRedirectToTheHub) {
  const std::string bytes = "{\"model_type\": \"llama\"}";
  std::mutex mutex;
  std::vector<std::string> with_token;
  const auto note = [&](const ToyRequest& r, const std::string& who) {
    const std::lock_guard lock(mutex);
    if (r.head.find("s3cret") != std::string::npos) with_token.push_back(who);
  };
  ToyServer hub([&](const ToyRequest& r) -> ToyReply {
    note(r, "hub");
    if (r.path.starts_with("/api/")) return {200, "{}", ""};
    if (r.path.ends_with("/large"))
      return {
          302, "the bytes are elsewhere",
          "X-Linked-Size: 5000\r\nX-Linked-Etag: \"" + std::string(64, 'a') + "\"\r\nLocation: http://192.0.2.1/x\r\n"};
    return {200, bytes, "ETag: \"" + git_blob_id(bytes) + "\"\r\n"};
  });
  std::string to = hub.url();
  ToyServer mirror([&](const ToyRequest& r) -> ToyReply {
    note(r, "mirror");
    return {308, "Permanent Redirect", "Location: " + to + r.path + "\r\n"};
  });
  HubOptions options;
  options.endpoint = mirror.url();
  options.token = "s3cret";
  options.backoff.sleep = [](double) {};
  const HubName name = *parse_hub_name("hf://org/tiny");
  HubSource source(name, options);
  EXPECT_EQ(source.ask("/api/models/org/tiny/revision/main", false, 2).body, "{}");
  const RemoteFile small = source.describe("main", "config.json");
  EXPECT_EQ(small.size, bytes.size());
  EXPECT_EQ(small.etag, git_blob_id(bytes));
  const RemoteFile large = source.describe("main", "large");
  EXPECT_EQ(large.size, 5000u);
  EXPECT_EQ(large.etag, std::string(64, 'a'));
  EXPECT_EQ(with_token, (std::vector<std::string>{"mirror", "mirror", "mirror"}));
  to = mirror.url();  // the mirror redirects to itself
  expect_error(ErrorKind::kNetwork, {"redirected more than"}, [&] { source.describe("main", "config.json"); });
}

TEST(Hub, ASmallFileMayBeNamedByItsSha1) {
  const testing::Scratch dir;
  const std::string bytes = "{}";
  ToyServer hub([&](const ToyRequest&) -> ToyReply { return {200, bytes, ""}; });
  HubOptions options;
  options.endpoint = hub.url();
  const HubName name = *parse_hub_name("hf://org/tiny");
  HubSource source(name, options);
  fs::create_directories(dir / "blobs");
  for (const std::string& etag : {sha1_hex(bytes), git_blob_id(bytes)}) {
    fetch_blob(dir.root(), {"config.json", hub.url() + "/x", etag, bytes.size()}, source, {});
    EXPECT_EQ(testing::get(dir / "blobs" / etag), bytes);
  }
  expect_error(ErrorKind::kModel, {"damaged mirror"}, [&] {
    fetch_blob(dir.root(), {"config.json", hub.url() + "/x", sha1_hex("other"), bytes.size()}, source, {});
  });
}

}  // namespace
}  // namespace specdec::net
