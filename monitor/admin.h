// The server's admin listener (docs/serve.md): drafts are put on trial, promoted and dropped there; and what a trial's
// scores decide.
#pragma once

#include <string>

#include "base/json.h"
#include "net/http_client.h"

namespace specdec::monitor {

class Admin {
 public:
  // http(s)://host:port or unix:PATH. Throws Error(kUsage) for anything else.
  Admin(const std::string& address, const Secret& key);

  struct Reply {
    int status = 0;
    Json body;            // "specdec.draft/1" of a 200, else an error object
    std::string problem;  // of any other status: the server's own words
  };
  Reply drafts();                  // GET. Throws Error(kNetwork) if the server does not answer
  Reply order(const Json& order);  // POST

  // Orders what is missing for this draft to serve all conversations: nothing, promote, or load and promote. `id`: its
  // fingerprint. Returns "" or why it is not so yet.
  std::string serve(const std::string& draft, const std::string& id);
  // Takes it off its trial if it is on one. Returns "" or why not.
  std::string drop(const std::string& id);

 private:
  Reply exchange(const std::string* body);
  net::HttpClient client_;
  std::string url_, socket_;
  Secret key_;
};

// Returns the fingerprint of the "serving" or the "candidate" draft in a reply, "" = there is none.
std::string draft_id_of(const Json& status, const char* which);

// Decides by the scores of a trial: "better" when the lower end of the paired difference is above −margin and the
// candidate is not surely below the floor, "worse" when the upper end is below 0 or the candidate is surely below the
// floor, else "" (wait). The server's interval holds whenever one looks (betting confidence sequence over conversations
// on (1 + difference) / 2).
struct Trial {
  std::string decision, text;
};
Trial judge_trial(const Json& paired, double margin, double floor);

}  // namespace specdec::monitor
