// Tests the environment variables and file names of hub.cpp. tests/e2e/hub tests the rest through the program, against
// a hub.
#include "net/hub.h"

#include "tests/base/scratch.h"

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
  set("HF_HUB_OFFLINE", "0");  // the newer name wins, as in huggingface_hub
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

}  // namespace
}  // namespace specdec::net
