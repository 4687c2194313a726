package firetrail.interop;

/** The command line or a spec line asks for something that cannot be done; the message says what. */
final class UsageError extends RuntimeException {
    private static final long serialVersionUID = 1L;

    UsageError(String message) {
        super(message);
    }
}
