// Fills the Hugging Face cache with the files that a model needs: config, tokenizer, chat template, safetensors; never
// pickle or code. Uses the layout of huggingface_hub 2 (base/hub_cache.h), so that specdec and huggingface_hub can read
// each other's files.
#pragma once

#include <string>

#include "base/hub_cache.h"
#include "base/progress.h"
#include "net/http_client.h"

namespace specdec::net {

// Returns whether a model may need the file with this name from the root of a repository. Only weights that
// base/safetensors reads count.
bool is_model_file(const std::string& name);

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  Secret token;                    // sent only to the endpoint's origin, over https or to this machine
  std::string token_source;        // "HF_TOKEN" or the path of a file; "" = no token
  bool offline = false;            // uses only the cache
  double metadata_timeout_s = 10;  // time limit of a request about a repository or a file
  // A download slower than 1 KiB/s for this long is broken off and continued.
  double stall_timeout_s = 10;
  Backoff backoff = [] {
    Backoff b;
    b.max_attempts = 5;
    return b;
  }();
};

// Reads these variables:
// * HF_ENDPOINT;
// * the token from HF_TOKEN, HUGGING_FACE_HUB_TOKEN or the file HF_TOKEN_PATH (else HF_HOME/token), unless
//   HF_HUB_DISABLE_IMPLICIT_TOKEN is set;
// * HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE;
// * HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT (seconds).
// A process that has read a token leaves no core file. Throws Error(kUsage) or Error(kConfig) for an invalid endpoint,
// time or token.
HubOptions hub_options_from_environment();

// Returns the complete snapshot of this revision. A cached commit is used without a request. For a branch or tag the
// hub is asked; if it cannot be reached, the cached snapshot is used, with a warning. Downloads continue where an
// earlier one broke off. Each file is checked against the size and digest that the hub gave, and gets its name last, so
// any number of processes may download at once. Throws:
// * Error(kModel) for an unknown model, revision or file, missing safetensors, hostile or malformed answers, or a wrong
//   digest;
// * Error(kUsage) for a gated model or a refused token;
// * Error(kNetwork) if the hub is unreachable or breaks off, and for 429 and 5xx;
// * Error(kIo) for disk errors and, before downloading, for too little disk space.
HubSnapshot fetch_model(const HubName& hub, const HubOptions& options, const ProgressFn& progress = {});

}  // namespace specdec::net
