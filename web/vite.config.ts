import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// The page is built into the Python package, from which the server sends it.
export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: "../src/fairlead/page",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the policy of the page allows no inline content
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/api": "http://127.0.0.1:7070", "/healthz": "http://127.0.0.1:7070" } },
});
