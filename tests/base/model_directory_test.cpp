#include "base/model_directory.h"

#include <gtest/gtest.h>

#include "tests/base/scratch.h"

namespace specdec {
namespace {

using namespace testing;

// Users pass files of other programs as models. The error says what such a file is and what to give instead.
TEST(ModelDirectory, WhatIsNoModelIsNamed) {
  const Scratch scratch;
  const auto refused = [&](const std::string& name, const std::vector<std::string>& words) {
    expect_error(ErrorKind::kModel, words, [&] { resolve_model((scratch / name).string()); });
  };
  put(scratch / "model.gguf", "GGUF");
  refused("model.gguf", {"model.gguf", "not a valid GGUF file", "truncated?"});
  put(scratch / "only/model.gguf", "GGUF");
  refused("only", {"no config.json", "GGUF", "give the file itself", "only/model.gguf"});
  put(scratch / "whole/config.json", "{}");
  put(scratch / "whole/model.safetensors", "");
  refused("whole/model.safetensors", {"found a file", "did you mean its folder, " + (scratch / "whole").string()});
  put(scratch / "adapter/adapter_config.json", "{}");
  refused("adapter", {"no config.json", "LoRA adapter", "merge"});
  put(scratch / "run/draft/config.json", "{}");
  refused("run", {"did you mean " + (scratch / "run/draft").string()});
  put(scratch / "empty/notes.txt", "");
  refused("empty", {"no config.json", "no manifest.json"});
}

// An encoder such as BERT is refused, naming its type, before any other file of the model is read.
TEST(ModelDirectory, AnEncoderIsNoModelThatWrites) {
  const Scratch scratch;
  const auto refused = [&](const std::string& config, const std::vector<std::string>& words) {
    put(scratch / "model/config.json", config);
    expect_error(ErrorKind::kModel, words, [&] { resolve_model((scratch / "model").string()); });
  };
  refused(R"({"model_type": "bert", "architectures": ["BertModel"]})", {"config.json", "'bert'", "expected a decoder"});
  refused(R"({"model_type": "xlm-roberta"})", {"'xlm-roberta'"});
  refused(R"({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]})",
          {"'LlamaForSequenceClassification'"});
  for (const char* config : {R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})",
                             R"({"model_type": 3})", R"({"architectures": "LlamaForCausalLMEagle3"})", "[]", "{"}) {
    put(scratch / "model/config.json", config);
    EXPECT_EQ(resolve_model((scratch / "model").string()).directory, scratch / "model") << config;
  }
}

// "models/target" is the README's path. If it does not exist here, it must not be looked up at a hub.
TEST(ModelDirectory, AUsualFolderIsNoOrganisation) {
  set_hub_resolver([](const HubName&) -> HubSnapshot { throw Error(ErrorKind::kNetwork, "the hub was asked"); });
  for (const char* name : {"models/no-such-target", "runs/draft", "weights/x"})
    expect_error(ErrorKind::kModel, {name, "no such directory", "hf://"}, [&] { resolve_model(name); });
  for (const char* name : {"org/no-such-target", "hf://models/no-such-target"})
    expect_error(ErrorKind::kNetwork, {"the hub was asked"}, [&] { resolve_model(name); });
  set_hub_resolver({});
}

}  // namespace
}  // namespace specdec
